"""Chooses each step's tokens: decode rows first, then prefills in fair order, within a token budget."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.memory import AHEAD, AdapterMemory
from worker_engine.config import PAGE_SIZE
from worker_engine.draft import Draft
from worker_engine.fairness import Account, Accounts
from worker_engine.memory_pool import MemoryPool, pages_for
from worker_engine.pending_pages import PendingPages
from worker_engine.prefix_cache import PrefixCache
from worker_engine.sequence import Sequence
from worker_engine.waiting_queue import WaitingQueue, rank

MAX_BYPASSED = 16
"""Sequences that may be admitted ahead of one whose adapter does not fit into the full batch."""

BURST_PER_ROW = 256.0
"""Virtual tokens, per row of the batch, by which a returning tenant may be behind others.

In the simulation of tests/worker_engine/test_fairness.py a tenant sends half its fair share. Its p99 TTFT
while another floods, relative to when that one sends its share too (median of six seeds): 2.6 without any
burst, 1.5 at 16, 1.07 at 64, 1.02 at 128, 1.08 at 256 and from there to 4,096; in seconds 0.46, 0.23, 0.15,
0.13 and 0.13. 256 leaves room for burstier arrivals than the simulation's.
"""


class MustDrain(Exception):
    """A sequence must free its pages while a launched step still uses them; collect the steps in flight
    first.
    """


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` tokens of `sequence`, starting at its `num_computed`.

    Attributes:
        drafts: draft tokens after a decode row, computed in extra rows; unverified, so not counted.
    """

    sequence: Sequence
    count: int
    drafts: tuple[Draft, ...] = ()

    @property
    def samples(self) -> bool:
        """True when the chunk reaches the sequence's end, so that the next token can be sampled."""
        return self.count == self.sequence.num_remaining and self.sequence.generates

    @property
    def reads(self) -> bool:
        """True when the chunk begins within the prompt."""
        return self.sequence.num_computed < self.sequence.num_prompt_tokens


class Scheduler:
    """Continuous batching with chunked prefill, fairness among tenants, and preemption by recomputation.

    A sequence is admitted only when pages for all of its tokens and its adapter are free, and takes them at
    once. After that, only decoding allocates more, one page at a time. When none is free, the most recently
    admitted sequence of the lowest priority is preempted: it frees its pages and waits as its tenant's first
    request. The oldest sequence of the highest priority is never preempted while another runs, and requests
    larger than the pool are refused, so it always finishes.

    Of sequences with a common prefix, the first computes it, and the others are admitted once it is cached.
    So a burst with one system prompt computes the prompt once.

    When all rows are taken, a tenant below its share takes a row from a tenant above its share. The victim's
    computed pages stay in the prefix cache, so it usually recomputes only one page.
    """

    def __init__(
        self,
        pool: MemoryPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        adapters: AdapterMemory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`adapters` None limits neither their number nor their memory."""
        self._pool, self._clock = pool, clock
        self._max_num_seqs, self.max_tokens = max_num_seqs, max_num_batched_tokens
        self.adapters = adapters or AdapterMemory(pool, page_bytes=0, max_adapters=max_num_seqs)
        self.prefixes = PrefixCache(pool)
        self._pending = PendingPages(self.prefixes)
        self.accounts = Accounts(BURST_PER_ROW * max_num_seqs)
        self.waiting = WaitingQueue(self.accounts)
        # A dict keeps insertion order and removes quickly; its values are unused.
        self.running: dict[Sequence, None] = {}
        self._deadlines: list[tuple[float, int, Sequence]] = []
        self._numbers = itertools.count()
        self.num_preemptions = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def fits(self, num_tokens: int, adapter: Adapter | None = None) -> bool:
        """Return True if `num_tokens` and the adapter fit into an otherwise empty pool."""
        return pages_for(num_tokens) + self.adapters.pages_of(adapter) <= self._pool.capacity

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence, self._clock())
        if sequence.request.origin.timeout is not None:
            self._forget_deadlines()
            heapq.heappush(self._deadlines, (sequence.deadline, next(self._numbers), sequence))

    def expired(self) -> list[Sequence]:
        """Return the waiting or running sequences whose deadline has passed since the last call."""
        late: list[Sequence] = []
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.finish_reason is None:
                late.append(sequence)
        return late

    def _forget_deadlines(self) -> None:
        """Drop finished sequences from the deadline heap once they are the majority."""
        if len(self._deadlines) > 2 * (len(self.running) + len(self.waiting)) + 64:
            self._deadlines = [item for item in self._deadlines if item[2].finish_reason is None]
            heapq.heapify(self._deadlines)

    def schedule(self) -> list[Chunk]:
        """Return the next step's chunks: decoding sequences first, then running and new prompts.

        Tokens of steps in flight count as present, so a sequence may get a row that turns out unnecessary. A
        sequence whose token in flight is its last by `max_tokens` gets none.

        Raises:
            MustDrain: call again after collecting the launched steps.
        """
        now = self._clock()
        self._pending.begin_step()
        if self.waiting:
            self._preempt_for_fairness(now)
        chunks = self._schedule_decodes(now)
        chunks += self._schedule_prefills(self.max_tokens - len(chunks), now)
        for _, sequence in itertools.islice(self.waiting.in_turn(now), AHEAD):
            self.adapters.prefetch(sequence.adapter)
        for chunk in chunks:
            if chunk.samples:
                chunk.sequence.account.charge_output()
        return chunks

    def commit(self, chunks: Iterable[Chunk]) -> None:
        """After the step, register the pages that it filled in the prefix cache."""
        for chunk in chunks:
            sequence = chunk.sequence
            full = min(sequence.num_computed, len(sequence.token_ids)) // PAGE_SIZE
            if full > sequence.num_known_pages:
                hashes = sequence.chain.extend(sequence.token_ids, full)
                for index in range(sequence.num_known_pages, full):
                    self.prefixes.insert(hashes[index], sequence.pages[index])
                self._pending.drop(sequence, hashes[sequence.num_known_pages :])
                sequence.num_known_pages = full

    def allocate_draft_pages(self, sequence: Sequence, drafts: int) -> int:
        """Allocate pages for draft tokens of a scheduled decode row, from free pages only.

        Returns:
            How many of the `drafts` tokens fit. `free_draft_pages` frees the excess pages after verification.
        """
        missing = pages_for(sequence.num_tokens + drafts) - len(sequence.pages)
        num_new = min(max(missing, 0), self._pool.num_free)
        sequence.pages += self._pool.allocate(num_new)
        return min(drafts, len(sequence.pages) * PAGE_SIZE - sequence.num_tokens)

    def free_draft_pages(self, sequence: Sequence) -> None:
        """Free the sequence's pages beyond its accepted tokens."""
        needed = pages_for(sequence.num_tokens)
        self.prefixes.release(sequence.pages[needed:])
        del sequence.pages[needed:]

    def finish(self, sequence: Sequence) -> None:
        """Remove a waiting or running sequence and free its pages.

        If a launched step still uses the pages, `release` frees them later.
        """
        if sequence in self.running:
            self._remove(sequence)
        else:
            self.waiting.remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free the pages and adapter of a sequence that left the batch, after its launched steps have run."""
        self.prefixes.release(sequence.pages)
        self.adapters.release(sequence.adapter)
        sequence.pages = []
        sequence.num_computed = sequence.num_known_pages = 0

    def _schedule_decodes(self, now: float) -> list[Chunk]:
        """Return one token for each decoding sequence. Preemption victims come last, before they are
        scheduled.
        """
        chunks = []
        ordered = sorted(self.running, key=lambda sequence: -sequence.request.origin.priority)
        victims = list(ordered)
        for sequence in ordered:
            if sequence.num_remaining != 1 or sequence.will_end or sequence not in self.running:
                continue
            if missing := sequence.num_missing_pages:
                while sequence in self.running and not self._pool.can_allocate(missing):
                    self._preempt(victims.pop(), now)
                if sequence not in self.running:
                    continue
                sequence.pages += self._pool.allocate(missing)
            chunks.append(Chunk(sequence, 1))
        return chunks

    def _schedule_prefills(self, budget: int, now: float) -> list[Chunk]:
        """Return prompt chunks in fair order; new sequences of less served tenants precede running ones."""
        chunks: list[Chunk] = []
        highest = self.waiting.highest_priority
        prefilling = [sequence for sequence in self.running if sequence.num_remaining > 1]
        started = deque(sorted(prefilling, key=lambda sequence: _rank(sequence, now, highest)))
        admitting = bool(self.waiting)
        while budget > 0 and (started or admitting):
            sequence = None
            if admitting:
                before = _rank(started[0], now, highest) if started else None
                sequence, admitting = self._admit_next(now, before)
            if sequence is None and started:
                sequence = started.popleft()
            if sequence is not None:
                chunks.append(Chunk(sequence, min(sequence.num_remaining, budget)))
                budget -= chunks[-1].count
        return chunks

    def _admit_next(
        self, now: float, before: tuple[float, float, int] | None
    ) -> tuple[Sequence | None, bool]:
        """Admit the next sequence in fair order, unless a running prompt's rank `before` precedes it.

        A sequence that lacks memory blocks all others. One whose adapter does not fit into the batch lets
        `MAX_BYPASSED` pass. One whose next page a running prompt is computing lets others pass, for a bounded
        time.

        Returns:
            The sequence or None, and whether calling again in this step can help.
        """
        if len(self.running) >= self._max_num_seqs:
            return None, False
        highest, held_up = self.waiting.highest_priority, []
        for group, sequence in self.waiting.in_turn(now):
            if before is not None and before <= group.rank(now, highest):
                return None, True
            if self._pending.holds_back(sequence):
                continue
            if not self.adapters.has_slot(sequence.adapter):
                if sequence.num_bypassed >= MAX_BYPASSED:
                    return None, False
                held_up.append(sequence)
                continue
            if not self._admit(sequence, now):
                return None, False
            for other in held_up:
                other.num_bypassed += 1
            return sequence, True
        return None, False

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Allocate pages and a row; at least the last token remains to be computed. False if pages are
        lacking.
        """
        total = len(sequence.token_ids)
        known = self.prefixes.acquire(sequence.reusable_hashes())
        missing = pages_for(total) - len(known)
        if not self._pool.can_allocate(missing + self.adapters.num_missing_pages(sequence.adapter)):
            self.prefixes.release(known)
            return False
        try:
            self.adapters.acquire(sequence.adapter)
        except BaseException:
            self.prefixes.release(known)
            raise
        sequence.pages = known + self._pool.allocate(missing)
        sequence.num_computed = len(known) * PAGE_SIZE
        sequence.num_known_pages = len(known)
        self.waiting.remove(sequence, admitted_at=now)
        self.running[sequence] = None
        self._pending.add(sequence)
        sequence.num_held = sequence.num_found_pages = 0
        sequence.account.num_running += 1
        if sequence.admitted is None:
            sequence.admitted, sequence.cached_tokens = now, sequence.num_computed
            self.prefixes.count(total, sequence.num_computed)
            sequence.account.charge_input(total - sequence.num_computed)
        return True

    def _preempt_for_fairness(self, now: float) -> None:
        """Preempt sequences of tenants above their share, for waiting tenants below theirs."""
        shares = self.accounts.row_shares(self._max_num_seqs)
        if len(shares) < 2 or not self.running:
            return
        most_served = max(sequence.account.served for sequence in self.running)
        for group in self.waiting.groups(now):
            account, sequence = group.account, group.sequences[0]
            if self._pending.holds_back(sequence):
                continue
            has_slot = self.adapters.has_slot(sequence.adapter)
            if has_slot and len(self.running) < self._max_num_seqs:
                continue
            behind = most_served - account.served > self.accounts.burst / 2
            if not behind and account.num_running + 1 > shares[account]:
                continue
            victims = self._victims(sequence, shares, whole_adapter=not has_slot)
            if victims and self._memory_after(victims, sequence):
                if any(victim.num_inflight_steps for victim in victims):
                    raise MustDrain
                for victim in victims:
                    self._preempt(victim, now)
                self._admit(sequence, now)

    def _victims(
        self, sequence: Sequence, shares: Mapping[Account, float], *, whole_adapter: bool
    ) -> list[Sequence]:
        """Return sequences to preempt for `sequence`: the newest of the most served tenant, or all of one
        adapter.
        """
        units: dict[object, list[Sequence]] = {}
        for other in reversed(self.running):
            lower = other.request.origin.priority <= sequence.request.origin.priority
            if other.account is not sequence.account and lower and not (whole_adapter and not other.adapter):
                key = (_sha256(other), other.account) if whole_adapter else other
                units.setdefault(key, []).append(other)
        ready = [
            unit
            for unit in units.values()
            if self._yields(unit[0].account, len(unit), sequence.account, shares)
            and (not whole_adapter or len(unit) == self.adapters.num_users(unit[0].adapter))
        ]
        return min(ready, key=lambda unit: (len(unit), -unit[0].account.served), default=[])

    def _yields(self, victim: Account, rows: int, claimant: Account, shares: Mapping[Account, float]) -> bool:
        """Return True if one tenant's `rows` rows should go to another tenant.

        That is so if the claimant is far behind in virtual tokens. It is also so if it is not far ahead and
        both tenants then respect their row shares. The reverse transfer cannot qualify as well, so rows do
        not oscillate.
        """
        behind = victim.served - claimant.served
        right = claimant.num_running + 1 <= shares[claimant] and victim.num_running - rows >= shares[victim]
        margin = self.accounts.burst / 2
        return behind > margin or (right and behind >= -margin)

    def _memory_after(self, victims: Iterable[Sequence], sequence: Sequence) -> bool:
        """Return True if `sequence` fits once the victims' pages are free, not counting cached prefixes."""
        freed = sum(self._pool.holders(page) == 1 for victim in victims for page in victim.pages)
        needed = pages_for(len(sequence.token_ids)) + self.adapters.num_missing_pages(sequence.adapter)
        return needed <= self._pool.num_free + freed

    def _preempt(self, victim: Sequence, now: float) -> None:
        if victim.num_inflight_steps:
            raise MustDrain
        self._remove(victim)
        self.waiting.put_back(victim, now)
        self.num_preemptions += 1

    def _remove(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self._pending.forget(sequence)
        sequence.account.num_running -= 1
        if not sequence.num_inflight_steps:
            self.release(sequence)


def _rank(sequence: Sequence, now: float, highest: int) -> tuple[float, float, int]:
    """Return a running prompt's rank among waiting sequences."""
    waited = now - (sequence.admitted or now)
    return rank(sequence.account, sequence.request.origin.priority, waited, highest)


def _sha256(sequence: Sequence) -> str:
    return sequence.adapter.sha256 if sequence.adapter is not None else ""

"""Which tokens the next step computes: decoding first, then prompts in whose turn it is, within a budget."""

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
"""Sequences that may enter before one whose turn it is but whose adapter the full batch cannot take."""

BURST_PER_ROW = 256.0
"""Virtual tokens, for each row of the batch, that a tenant may be behind when it comes back.

In the simulation of tests/worker_engine/test_fairness.py a tenant sends half its fair share. Its p99 TTFT
while another floods, over the same while that one sends its share (median of six seeds): 2.6 without any
burst, 1.5 at 16, 1.07 at 64, 1.02 at 128, 1.08 at 256 and from there to 4,096; in seconds 0.46, 0.23, 0.15,
0.13 and 0.13. 256 leaves room for arrivals less even than that simulation's.
"""


class MustDrain(Exception):
    """A sequence must give its pages back, and a launched step still has rows of it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` tokens of `sequence`, from its `num_computed` on.

    Attributes:
        drafts: of a decode row, guesses that are computed behind it; they count for nothing until they are
            found right.
    """

    sequence: Sequence
    count: int
    drafts: tuple[Draft, ...] = ()

    @property
    def samples(self) -> bool:
        """True when the chunk reaches the sequence's end, so that the next token can be drawn."""
        return self.count == self.sequence.num_remaining and self.sequence.generates

    @property
    def reads(self) -> bool:
        """True when the chunk begins within the prompt."""
        return self.sequence.num_computed < self.sequence.num_prompt_tokens


class Scheduler:
    """Continuous batching with chunked prefill, fair among tenants, and preemption by recompute.

    A sequence enters only when pages for all of its tokens and its adapter can be had, and takes them at
    once; after that only decoding asks for more, one page at a time. When there is none, the sequence of the
    lowest priority that entered last gives its pages back and waits at the head of its tenant's requests.
    The first of the highest priority is never the victim while another runs, and no request larger than the
    pool is accepted, so it always ends.

    Of sequences that begin alike the first computes their common prefix, and the others enter once it is
    known: a burst with one system prompt computes it once.

    When all rows are taken, a tenant that had less than its share gets one from a tenant that had more. What
    the victim has computed stays in the prefix cache, so as a rule that costs it one page of recomputing.
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
        """`adapters` None bounds neither their number nor their memory."""
        self._pool, self._clock = pool, clock
        self._max_num_seqs, self.max_tokens = max_num_seqs, max_num_batched_tokens
        self.adapters = adapters or AdapterMemory(pool, page_bytes=0, max_adapters=max_num_seqs)
        self.prefixes = PrefixCache(pool)
        self._pending = PendingPages(self.prefixes)
        self.accounts = Accounts(BURST_PER_ROW * max_num_seqs)
        self.waiting = WaitingQueue(self.accounts)
        # A dict for its order of entry and its quick removal; the values mean nothing.
        self.running: dict[Sequence, None] = {}
        self._deadlines: list[tuple[float, int, Sequence]] = []
        self._numbers = itertools.count()
        self.num_preemptions = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def fits(self, num_tokens: int, adapter: Adapter | None = None) -> bool:
        """Whether `num_tokens` and the adapter can ever be held, all others gone."""
        return pages_for(num_tokens) + self.adapters.pages_of(adapter) <= self._pool.capacity

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence, self._clock())
        if sequence.request.origin.timeout is not None:
            self._forget_deadlines()
            heapq.heappush(self._deadlines, (sequence.deadline, next(self._numbers), sequence))

    def expired(self) -> list[Sequence]:
        """Sequences, waiting or running, whose deadline has passed; each is named once."""
        late: list[Sequence] = []
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.finish_reason is None:
                late.append(sequence)
        return late

    def _forget_deadlines(self) -> None:
        """Lets go of sequences that ended long before their deadline, once they are the greater part."""
        if len(self._deadlines) > 2 * (len(self.running) + len(self.waiting)) + 64:
            self._deadlines = [item for item in self._deadlines if item[2].finish_reason is None]
            heapq.heapify(self._deadlines)

    def schedule(self) -> list[Chunk]:
        """The next step's chunks: decoding sequences first, then prompts, those running and those new.

        Tokens that launched steps choose count as there, so a sequence may get a row that it turns out not to
        need. None of a sequence whose launched token is its last by `max_tokens`.

        Raises:
            MustDrain: once the launched steps have been collected, asking again helps.
        """
        now = self._clock()
        self._pending.begin_step()
        if self.waiting:
            self._give_way(now)
        chunks = self._schedule_decodes(now)
        chunks += self._schedule_prefills(self.max_tokens - len(chunks), now)
        for _, sequence in itertools.islice(self.waiting.in_turn(now), AHEAD):
            self.adapters.prefetch(sequence.adapter)
        for chunk in chunks:
            if chunk.samples:
                chunk.sequence.account.charge_output()
        return chunks

    def commit(self, chunks: Iterable[Chunk]) -> None:
        """After the step: makes the pages that it filled known to the prefix cache."""
        for chunk in chunks:
            sequence = chunk.sequence
            full = min(sequence.num_computed, len(sequence.token_ids)) // PAGE_SIZE
            if full > sequence.num_known_pages:
                hashes = sequence.chain.extend(sequence.token_ids, full)
                for index in range(sequence.num_known_pages, full):
                    self.prefixes.insert(hashes[index], sequence.pages[index])
                self._pending.drop(sequence, hashes[sequence.num_known_pages :])
                sequence.num_known_pages = full

    def lend(self, sequence: Sequence, drafts: int) -> int:
        """How many guesses behind a scheduled decode row find pages; what it holds too many, it gives back in
        `take_back`.
        """
        missing = pages_for(sequence.num_tokens + drafts) - len(sequence.pages)
        given = min(max(missing, 0), self._pool.num_free)
        sequence.pages += self._pool.allocate(given)
        return min(drafts, len(sequence.pages) * PAGE_SIZE - sequence.num_tokens)

    def take_back(self, sequence: Sequence) -> None:
        """Frees the pages of guesses that turned out wrong."""
        needed = pages_for(sequence.num_tokens)
        self.prefixes.release(sequence.pages[needed:])
        del sequence.pages[needed:]

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it stands, and frees its pages: at once where no launched step has
        rows of it, else when `release` is called.
        """
        if sequence in self.running:
            self._leave(sequence)
        else:
            self.waiting.remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """Frees what a sequence that left the batch held for launched steps; they have run."""
        self.prefixes.release(sequence.pages)
        self.adapters.release(sequence.adapter)
        sequence.pages = []
        sequence.num_computed = sequence.num_known_pages = 0

    def _schedule_decodes(self, now: float) -> list[Chunk]:
        """One token of each decoding sequence, possible victims last, so that none is scheduled yet."""
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
        """Prompts in whose turn it is: a newcomer of a tenant served less goes before a running one."""
        chunks: list[Chunk] = []
        highest = self.waiting.highest_priority
        prefilling = [sequence for sequence in self.running if sequence.num_remaining > 1]
        started = deque(sorted(prefilling, key=lambda sequence: _rank(sequence, now, highest)))
        newcomers = bool(self.waiting)
        while budget > 0 and (started or newcomers):
            sequence = None
            if newcomers:
                before = _rank(started[0], now, highest) if started else None
                sequence, newcomers = self._admit_next(now, before)
            if sequence is None and started:
                sequence = started.popleft()
            if sequence is not None:
                chunks.append(Chunk(sequence, min(sequence.num_remaining, budget)))
                budget -= chunks[-1].count
        return chunks

    def _admit_next(
        self, now: float, before: tuple[float, float, int] | None
    ) -> tuple[Sequence | None, bool]:
        """Admits the sequence whose turn it is, unless a running prompt's rank `before` precedes it.

        Returns it, or None, and whether asking again can help. One that lacks memory lets nobody pass; one
        whose adapter finds the batch full of others lets `MAX_BYPASSED` pass; one whose next page a running
        prompt computes lets others pass, for a bounded time.
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
            if not self._enter(sequence, now):
                return None, False
            for other in held_up:
                other.num_bypassed += 1
            return sequence, True
        return None, False

    def _enter(self, sequence: Sequence, now: float) -> bool:
        """Takes pages and a row; its last token, at least, is left to compute. False when pages lack."""
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

    def _give_way(self, now: float) -> None:
        """Rows and adapter slots go from tenants that have had more to those that wait and had less."""
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
                if any(victim.num_launched for victim in victims):
                    raise MustDrain
                for victim in victims:
                    self._preempt(victim, now)
                self._enter(sequence, now)

    def _victims(
        self, sequence: Sequence, shares: Mapping[Account, float], *, whole_adapter: bool
    ) -> list[Sequence]:
        """Who makes room for `sequence`: the youngest of the most served, or all that use one adapter."""
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

    def _yields(self, victim: Account, rows: int, heir: Account, shares: Mapping[Account, float]) -> bool:
        """Whether `rows` rows of one tenant go to another.

        They do when that one is far behind, and, unless it is far ahead, when both then stand on the right
        side of their shares of rows. Both cannot hold the other way round, so none goes to and fro.
        """
        behind = victim.served - heir.served
        right = heir.num_running + 1 <= shares[heir] and victim.num_running - rows >= shares[victim]
        margin = self.accounts.burst / 2
        return behind > margin or (right and behind >= -margin)

    def _memory_after(self, victims: Iterable[Sequence], sequence: Sequence) -> bool:
        """Whether `sequence` finds pages once the victims are gone, whatever the prefix cache holds of it."""
        freed = sum(self._pool.holders(page) == 1 for victim in victims for page in victim.pages)
        needed = pages_for(len(sequence.token_ids)) + self.adapters.num_missing_pages(sequence.adapter)
        return needed <= self._pool.num_free + freed

    def _preempt(self, victim: Sequence, now: float) -> None:
        if victim.num_launched:
            raise MustDrain
        self._leave(victim)
        self.waiting.put_back(victim, now)
        self.num_preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self._pending.leave(sequence)
        sequence.account.num_running -= 1
        if not sequence.num_launched:
            self.release(sequence)


def _rank(sequence: Sequence, now: float, highest: int) -> tuple[float, float, int]:
    """A running prompt's turn among those that wait."""
    waited = now - (sequence.admitted or now)
    return rank(sequence.account, sequence.request.origin.priority, waited, highest)


def _sha256(sequence: Sequence) -> str:
    return sequence.adapter.sha256 if sequence.adapter is not None else ""

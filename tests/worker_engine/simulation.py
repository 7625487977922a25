"""The scheduler without a model: pages hold what was written to them, and a step takes a set time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any, cast

from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.memory import AdapterMemory
from worker_engine.config import PAGE_SIZE
from worker_engine.memory_pool import MemoryPool, pages_for
from worker_engine.protocol import FinishReason, GenerateRequest, Origin, SamplingParams
from worker_engine.scheduler import Chunk, Scheduler
from worker_engine.sequence import Sequence

PAGE_BYTES = 1000


def adapter(number: int, pages: int = 1) -> Adapter:
    """An adapter without weights that takes `pages` pages."""
    return Adapter(f"{number:064x}", (), pages * PAGE_BYTES)


@dataclass
class Simulation:
    """Steps a scheduler; every page remembers, for each slot, which context was computed into it.

    A step takes `fixed_s`, `row_s` for each decoding row and `token_s` for each token of a prompt. `checked`
    False leaves the comparing out, for long runs about time alone.
    """

    num_pages: int = 4000
    max_num_seqs: int = 16
    budget: int = 128
    max_adapters: int = 64
    fixed_s: float = 0.01
    row_s: float = 0.0005
    token_s: float = 0.0002
    now: float = 0.0
    checked: bool = True
    first_token: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = MemoryPool(self.num_pages + 1)
        self.scheduler = Scheduler(
            self.pool,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            adapters=AdapterMemory(self.pool, page_bytes=PAGE_BYTES, max_adapters=self.max_adapters),
            clock=lambda: self.now,
        )
        self.contents: dict[int, dict[int, object]] = defaultdict(dict)
        self.live: dict[str, Sequence] = {}
        self._draw = random.Random(5)

    def add(
        self,
        name: str,
        prompt: Items[int],
        max_tokens: int,
        *,
        uses: Adapter | None = None,
        place: int = 0,
        **origin: Any,
    ) -> Sequence:
        request = GenerateRequest(
            name, tuple(prompt), SamplingParams(max_tokens), None, Origin(**origin), place=place
        )
        sequence = Sequence(request, cast(Any, None), uses, arrived=self.now)
        self.live[name] = sequence
        self.scheduler.add(sequence)
        return sequence

    def finish(self, sequence: Sequence, reason: FinishReason = FinishReason.LENGTH) -> None:
        sequence.finish_reason = reason
        del self.live[sequence.request.request_id]
        self.ended[sequence.request.request_id] = self.now
        self.scheduler.finish(sequence)

    def step(self) -> list[Chunk]:
        """One step: what it computes is written to pages and what it reads is compared."""
        for late in self.scheduler.expired():
            self.finish(late, FinishReason.TIMEOUT)
        chunks = self.scheduler.schedule()
        assert sum(chunk.count for chunk in chunks) <= self.budget
        for page in self.pool.take_fresh():
            self.contents[page].clear()
        for chunk in chunks if self.checked else ():
            self._compute(chunk)
        decoding = sum(chunk.count == 1 for chunk in chunks)
        self.now += self.fixed_s + self.row_s * decoding
        self.now += self.token_s * sum(chunk.count for chunk in chunks if chunk.count > 1)
        samples = [chunk.sequence for chunk in chunks if chunk.samples]
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.count
        self.scheduler.commit(chunks)
        for sequence in samples:
            sequence.token_ids.append(self._draw.randrange(4))
            self.first_token.setdefault(sequence.request.request_id, self.now)
            if sequence.num_completion_tokens >= sequence.request.sampling.max_tokens:
                self.finish(sequence)
        return chunks

    def run(self, limit: int = 20_000) -> None:
        """Steps until nothing is left. Raises AssertionError after `limit` steps: a deadlock."""
        for _ in range(limit):
            if self.scheduler.idle:
                return
            # The step may also have ended the last ones, whose time was up.
            assert self.step() or self.scheduler.idle, "a step computed nothing although requests wait"
        raise AssertionError(f"{len(self.live)} requests have not ended after {limit} steps")

    def _compute(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        meaning = self._meaning(sequence, sequence.num_computed + chunk.count)
        for at in range(sequence.num_computed):
            found = self.contents[sequence.pages[at // PAGE_SIZE]].get(at % PAGE_SIZE)
            assert found == meaning[at], f"position {at} holds another context's keys and values"
        for at in range(sequence.num_computed, len(meaning)):
            page = sequence.pages[at // PAGE_SIZE]
            assert self.pool.holders(page) == 1, "a page that others read is written to"
            self.contents[page][at % PAGE_SIZE] = meaning[at]

    @staticmethod
    def _meaning(sequence: Sequence, length: int) -> list[int]:
        """Return for each position a stand-in for its keys and values: all that they depend on."""
        sha256 = sequence.adapter.sha256 if sequence.adapter is not None else ""
        state = hash((sequence.request.origin.cache_salt, sha256))
        meaning = []
        for token in sequence.token_ids[:length]:
            state = hash((state, token))
            meaning.append(state)
        return meaning

    def check(self) -> None:
        """Check: no page lost or without a holder, exact holders, rows and adapters within bounds."""
        holders: dict[int, int] = defaultdict(int)
        for sequence in self.scheduler.running:
            assert len(sequence.pages) <= pages_for(len(sequence.token_ids)), "more pages than it needs"
            for page in sequence.pages:
                holders[page] += 1
        for pages in self.scheduler.adapters.active_pages():
            for page in pages:
                holders[page] += 1
        assert all(self.pool.holders(page) == count for page, count in holders.items())
        assert self.pool.num_used == len(holders)
        assert self.pool.num_used + self.pool.num_free == self.pool.capacity
        assert len(self.scheduler.running) <= self.max_num_seqs
        used = {run.adapter.sha256 for run in self.scheduler.running if run.adapter is not None}
        assert len(used) == self.scheduler.adapters.num_active <= self.max_adapters
        for account in self.scheduler.accounts:
            running = sum(run.account is account for run in self.scheduler.running)
            waiting = sum(wait.account is account for wait in self.scheduler.waiting)
            assert (account.num_running, account.num_waiting) == (running, waiting)

"""Which tokens the next step computes: first come, first served, as far as rows and pages reach."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from worker_engine.memory_pool import MemoryPool
from worker_engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` tokens of `sequence`, from its `num_computed` on."""

    sequence: Sequence
    count: int

    @property
    def samples(self) -> bool:
        """True when the chunk reaches the sequence's end, so that the next token can be drawn."""
        return self.count == self.sequence.num_remaining


class Scheduler:
    """Continuous batching with chunked prefill, and preemption by recompute.

    A sequence enters only when pages for all of its tokens are free, and takes them at once; after that
    only decoding asks for more, one page at a time. When none is left, the youngest running sequence
    gives its pages back and waits at the head of the queue to be computed again. The oldest is never the
    victim while another runs, and no request larger than the pool is accepted, so the oldest always ends.
    """

    def __init__(self, pool: MemoryPool, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._pool = pool
        self._max_num_seqs, self._max_tokens = max_num_seqs, max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self) -> list[Chunk]:
        """The next step's chunks: decoding sequences first, then prefills, then newcomers."""
        chunks = self._schedule_decodes()
        budget = self._max_tokens - len(chunks)
        for sequence in self.running:
            if sequence.num_remaining > 1 and budget > 0:
                chunks.append(Chunk(sequence, min(sequence.num_remaining, budget)))
                budget -= chunks[-1].count
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            if not self._pool.can_allocate(self.waiting[0].num_missing_pages):
                break
            sequence = self.waiting.popleft()
            sequence.pages += self._pool.allocate(sequence.num_missing_pages)
            self.running.append(sequence)
            chunks.append(Chunk(sequence, min(sequence.num_remaining, budget)))
            budget -= chunks[-1].count
        return chunks

    def _schedule_decodes(self) -> list[Chunk]:
        """One token of each decoding sequence, oldest first, so that a victim is never scheduled yet."""
        chunks = []
        for sequence in list(self.running):
            if sequence.num_remaining != 1 or sequence not in self.running:
                continue
            while sequence in self.running and not self._pool.can_allocate(sequence.num_missing_pages):
                self._preempt(self.running[-1])
            if sequence in self.running:
                sequence.pages += self._pool.allocate(sequence.num_missing_pages)
                chunks.append(Chunk(sequence, 1))
        return chunks

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self._release(victim)
        self.waiting.appendleft(victim)
        self.num_preemptions += 1

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it stands, and frees its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._pool.free(sequence.pages)
        sequence.pages = []
        sequence.num_computed = 0

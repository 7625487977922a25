"""Simulates the engine of one vLLM server in its own time: a queue, a batch, adapter slots, and loads.

Follows vLLM's engine in what routing can change:

- A step computes the next token of every decoding request, and up to `step_tokens` tokens in all, so that a
  long prompt is computed in chunks beside the others' decoding.
- A batch holds requests of at most `max_loras` adapters. Waiting requests of further adapters are passed
  over until a slot is free.
- Adapters in host memory are copied into a slot within a step. Adapters on disk are read first. Both happen
  in the engine's loop, so every request of the server waits.

It has neither a prefix cache nor preemption: `max_num_seqs` is small enough for the memory of the KV cache.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Sizes and times of one server; times are seconds.

    The defaults are Llama-3.1-8B in bf16 with adapters of rank 16 on all linear layers (84 MB each) on an
    L40S (`ml.g6e.2xlarge`), by its data sheet: 864 GB/s and 362 TFLOP/s in bf16.

    Attributes:
        step: 16.1 GB of weights at the memory's bandwidth, and 2 ms of the host's work.
        prompt_token: 16 GFLOP at 40% of the peak.
        decode_token: sampling and the host's work for each sequence.
        context_token: 128 KiB of keys and values at the memory's bandwidth.
        adapter: reading an active adapter's 84 MB at the memory's bandwidth.
        slot_copy: 84 MB from host memory at 25 GB/s.
        disk_load: median time to read an adapter from disk, as AWS's workshop on multi-LoRA serving states.
        disk_spread: standard deviation of the time's logarithm, an assumption: 1 load in 100 takes 3.2
            medians.
    """

    max_loras: int = 32
    max_cpu_loras: int = 64
    max_num_seqs: int = 64
    step_tokens: int = 2048
    step: float = 0.0206
    prompt_token: float = 0.00011
    decode_token: float = 0.00003
    context_token: float = 152e-9
    adapter: float = 0.0001
    slot_copy: float = 0.0034
    disk_load: float = 0.064
    disk_spread: float = 0.5


@dataclass(eq=False, slots=True)
class Job:
    """One request in the engine.

    Attributes:
        adapter: engine name; "" for the base model.
        started: set when the first token is computed.
        ended: set with the last one.
    """

    adapter: str
    prompt: int
    answer: int
    started: asyncio.Future[None]
    ended: asyncio.Future[None]
    left: int = 0
    """Tokens of the prompt that are not computed."""

    def __post_init__(self) -> None:
        self.left = self.prompt


@dataclass(eq=False)
class SimulatedEngine:
    """One engine. `run` it as a task; its clock is the event loop's.

    Attributes:
        disk_loads: adapters read from disk so far.
    """

    shape: EngineShape
    seed: int
    disk_loads: int = 0
    _arrived: deque[Job] = field(default_factory=deque)
    _passed_over: deque[Job] = field(default_factory=deque)
    _prefilling: deque[Job] = field(default_factory=deque)
    _decoding: list[tuple[int, int, Job]] = field(default_factory=list)
    _batch: Counter[str] = field(default_factory=Counter)
    _slots: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _host: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _loads: deque[tuple[str, asyncio.Future[None]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._wake = asyncio.Event()
        self._steps, self._context = 0, 0
        self._numbers = count()
        self._freed = False

    @property
    def running(self) -> int:
        return len(self._decoding) + len(self._prefilling)

    @property
    def waiting(self) -> int:
        return len(self._arrived) + len(self._passed_over)

    @property
    def batch_adapters(self) -> list[str]:
        return [name for name in self._batch if name]

    @property
    def _slots_used(self) -> int:
        return len(self._batch) - ("" in self._batch)

    @property
    def waiting_adapters(self) -> set[str]:
        return {job.adapter for jobs in (self._arrived, self._passed_over) for job in jobs if job.adapter}

    def submit(self, adapter: str, prompt: int, answer: int) -> Job:
        """Queue a request."""
        loop = asyncio.get_running_loop()
        job = Job(adapter, max(1, prompt), max(1, answer), loop.create_future(), loop.create_future())
        self._arrived.append(job)
        self._wake.set()
        return job

    async def load(self, adapter: str) -> None:
        """Read an adapter from disk, between two steps."""
        done = asyncio.get_running_loop().create_future()
        self._loads.append((adapter, done))
        self._wake.set()
        await done

    def drop(self, adapter: str) -> None:
        """Forget an adapter that no request uses."""
        self._host.pop(adapter, None)
        if adapter not in self._batch:
            self._slots.pop(adapter, None)

    async def run(self) -> None:
        """Compute steps for ever."""
        while True:
            while self._loads:
                await self._load_next()
            admitted = self._admit()
            if not self.running:
                self._wake.clear()
                await self._wake.wait()
                continue
            await asyncio.sleep(admitted + self._compute())
            self._finish()

    async def _load_next(self) -> None:
        adapter, done = self._loads.popleft()
        await asyncio.sleep(self._to_host(adapter))
        if not done.done():
            done.set_result(None)

    def _admit(self) -> float:
        """Move waiting requests into the batch; return the seconds that their adapters take."""
        if self._freed:
            # Only the end of a request makes room for those that were passed over.
            self._arrived.extendleft(reversed(self._passed_over))
            self._passed_over.clear()
            self._freed = False
        seconds = 0.0
        while self._arrived and self.running < self.shape.max_num_seqs:
            job = self._arrived.popleft()
            if job.adapter and job.adapter not in self._batch and self._slots_used >= self.shape.max_loras:
                self._passed_over.append(job)
                continue
            seconds += self._to_slot(job.adapter)
            self._batch[job.adapter] += 1
            self._prefilling.append(job)
        return seconds

    def _to_slot(self, adapter: str) -> float:
        if not adapter:
            return 0.0
        seconds = 0.0 if adapter in self._host else self._to_host(adapter)
        self._host.move_to_end(adapter)
        if adapter not in self._slots:
            seconds += self.shape.slot_copy
            self._slots[adapter] = None
        self._slots.move_to_end(adapter)
        _evict(self._slots, self.shape.max_loras, self._batch)
        return seconds

    def _to_host(self, adapter: str) -> float:
        self.disk_loads += 1
        self._host[adapter] = None
        _evict(self._host, self.shape.max_cpu_loras, self._batch)
        return self._random.lognormvariate(0.0, self.shape.disk_spread) * self.shape.disk_load

    def _compute(self) -> float:
        """Plan one step; return its seconds."""
        shape, budget = self.shape, self.shape.step_tokens - len(self._decoding)
        chunk_tokens = 0
        for job in self._prefilling:
            if chunk_tokens >= budget:
                break
            tokens = min(job.left, budget - chunk_tokens)
            job.left -= tokens
            chunk_tokens += tokens
        return (
            shape.step
            + chunk_tokens * shape.prompt_token
            + len(self._decoding) * shape.decode_token
            + self._context * shape.context_token
            + self._slots_used * shape.adapter
        )

    def _finish(self) -> None:
        """Emit the step's tokens."""
        self._steps += 1
        self._context += len(self._decoding)
        while self._decoding and self._decoding[0][0] <= self._steps:
            _, _, job = heapq.heappop(self._decoding)
            self._context -= job.prompt + job.answer
            self._end(job)
        while self._prefilling and not self._prefilling[0].left:
            job = self._prefilling.popleft()
            _set(job.started)
            if job.answer == 1:
                self._end(job)
                continue
            self._context += job.prompt + 1
            heapq.heappush(self._decoding, (self._steps + job.answer - 1, next(self._numbers), job))

    def _end(self, job: Job) -> None:
        self._freed = True
        self._batch[job.adapter] -= 1
        if not self._batch[job.adapter]:
            del self._batch[job.adapter]
        _set(job.ended)


def _evict(held: OrderedDict[str, None], most: int, in_use: Collection[str]) -> None:
    """Drop adapters that were used longest ago, except those of the batch."""
    for name in list(held):
        if len(held) <= most:
            return
        if name not in in_use:
            del held[name]


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""A worker without a device: the engine's own scheduler, memory pool, prefix cache and adapter tiers.

Only what needs a device or files is simulated: a step takes the time that `Costs` states instead of being
computed, copies to the device and reads from disk take theirs, and every token is the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from benchmarks.routing.virtual_time import VirtualTimeLoop
from benchmarks.simulator.costs import StepLoad
from contracts.adapters.reference import AdapterMix, AdapterRef
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.memory import AdapterMemory
from worker_engine.adapters.pool import AdapterPool
from worker_engine.draft import drafts_of
from worker_engine.histogram import Histogram
from worker_engine.memory_pool import MemoryPool
from worker_engine.protocol import FinishReason, GenerateRequest, Origin, SamplingParams
from worker_engine.scheduler import Chunk, Scheduler
from worker_engine.sequence import Sequence as EngineSequence
from worker_engine.text.tokenizer import Detokenizer

TOKEN: Final = 1
DISK_SPREAD: Final = 0.5
"""Standard deviation of the logarithm of a read's seconds, an assumption: 1 in 100 takes 3.2 medians."""


class Costs(Protocol):
    """The times of steps."""

    def seconds(self, load: StepLoad) -> float:
        """Return the seconds of a step."""


@dataclass(frozen=True, slots=True)
class WorkerShape:
    """Sizes and times of one worker, except those of its steps.

    Attributes:
        pool_bytes: memory for keys, values and the adapters of running requests.
        page_bytes: of one page of 16 tokens.
        adapter_bytes: of each adapter.
        host_bytes: host memory for adapters.
        copy_bandwidth: bytes per second from host memory to the device; 0 where adapters are read in place.
        disk_seconds: median time to read an adapter from disk; 64 ms as AWS's workshop on multi-LoRA serving
            states for 84 MB.
        drafts: draft tokens that a step verifies for each decoding sequence.
        acceptance: probability that a draft token is right if those before it were, an assumption.
    """

    pool_bytes: float
    page_bytes: int
    adapter_bytes: int
    host_bytes: float
    copy_bandwidth: float = 50e9
    disk_seconds: float = 0.064
    max_num_seqs: int = 64
    step_tokens: int = 2048
    max_adapters: int = 32
    drafts: int = 0
    acceptance: float = 0.7


class SimulatedTier:
    """Copies to the device, one after another beside the steps."""

    def __init__(self, shape: WorkerShape, loop: asyncio.AbstractEventLoop) -> None:
        self._shape, self._loop = shape, loop
        self._arrivals: dict[str, float] = {}
        self._free_at = 0.0
        self.load_seconds = Histogram()
        self.num_bytes = self.num_loads = 0

    def pages_of(self, adapter: Adapter) -> int:
        """Return the pages of the adapter's bytes."""
        return -(-adapter.nbytes // self._shape.page_bytes)

    def load(self, adapter: Adapter, pages: Sequence[int]) -> None:
        """Begin the copy when those before it are done."""
        seconds = adapter.nbytes / self._shape.copy_bandwidth
        self._free_at = max(self._free_at, self._loop.time()) + seconds
        self._arrivals[adapter.sha256] = self._free_at
        self.load_seconds.observe(seconds)
        self.num_bytes += adapter.nbytes
        self.num_loads += 1

    def drop(self, sha256: str) -> None:
        """Forget the adapter."""
        del self._arrivals[sha256]

    def wait(self, adapters: Iterable[str]) -> float:
        """Return the seconds until the copies of these adapters have ended."""
        now = self._loop.time()
        return max((self._arrivals.get(sha256, 0.0) - now for sha256 in adapters), default=0.0)


class SimulatedLoader:
    """Reads from disk that take simulated time, for `AdapterPool`."""

    num_unkept = 0

    def __init__(self, shape: WorkerShape, loop: VirtualTimeLoop, chance: random.Random) -> None:
        self._shape, self._loop, self._chance = shape, loop, chance

    def cached(self) -> list[str]:
        """Return nothing: which files are on disk does not matter here, all are."""
        return []

    def is_cached(self, ref: AdapterRef | AdapterMix) -> bool:
        """Return True."""
        return True

    def load(self, ref: AdapterRef | AdapterMix) -> Adapter:
        """Return an adapter without weights, after the time of a read."""
        self._loop.block(self._chance.lognormvariate(0.0, DISK_SPREAD) * self._shape.disk_seconds)
        return Adapter(ref.sha256, (), self._shape.adapter_bytes)


class _NoText(Detokenizer):
    """Makes no text of tokens."""

    def __init__(self) -> None:
        self.stopped = False


@dataclass(eq=False, slots=True)
class _Call:
    """A request's moments, set by the step that reaches them."""

    started: asyncio.Future[None]
    ended: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class Served:
    """Seconds of one request: from its arrival to its first token, and from that to its last."""

    ttft: float
    decoding: float
    tokens: int


class SimulatedWorker:
    """One worker. `run` it as a task of a `VirtualTimeLoop`.

    Attributes:
        busy_seconds: time in steps so far.
        num_tokens: tokens generated so far.
    """

    def __init__(self, shape: WorkerShape, costs: Costs, loop: VirtualTimeLoop, *, seed: int = 1) -> None:
        self._shape, self._costs, self._loop = shape, costs, loop
        self._chance = random.Random(seed)
        self.tier = SimulatedTier(shape, loop) if shape.copy_bandwidth else None
        pool = MemoryPool(1 + int(shape.pool_bytes / shape.page_bytes))
        memory = AdapterMemory(
            pool, page_bytes=shape.page_bytes, max_adapters=shape.max_adapters, tier=self.tier
        )
        self.scheduler: Final = Scheduler(
            pool,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.step_tokens,
            adapters=memory,
            clock=loop.time,
        )
        self.adapters: Final = AdapterPool(
            SimulatedLoader(shape, loop, random.Random(seed)), max_bytes=int(shape.host_bytes)
        )
        self._calls: dict[EngineSequence, _Call] = {}
        self._wake = asyncio.Event()
        self._numbers = 0
        self.busy_seconds = 0.0
        self.num_tokens = 0

    @property
    def pending(self) -> int:
        return len(self._calls)

    async def serve(self, adapter: AdapterRef | None, prompt: int, answer: int) -> Served:
        """Serve one request to its end. Its prompt shares no tokens with others."""
        arrived = self._loop.time()
        if adapter is None:
            return await self._generate(None, prompt, answer, arrived)
        async with self.adapters.acquire(adapter) as held:
            return await self._generate(held, prompt, answer, arrived)

    async def _generate(self, adapter: Adapter | None, prompt: int, answer: int, arrived: float) -> Served:
        self._numbers += 1
        first = self._numbers << 20
        request = GenerateRequest(
            str(self._numbers),
            tuple(range(first, first + prompt)),
            SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True),
            origin=Origin(tenant="" if adapter is None else adapter.sha256),
        )
        sequence = EngineSequence(request, _NoText(), adapter, arrived=arrived)
        call = self._calls[sequence] = _Call(self._loop.create_future(), self._loop.create_future())
        self.scheduler.add(sequence)
        self._wake.set()
        await call.started
        started = self._loop.time()
        await call.ended
        return Served(started - arrived, self._loop.time() - started, answer)

    async def run(self) -> None:
        """Compute steps for ever."""
        while True:
            chunks = self._planned()
            if not chunks:
                if self.scheduler.waiting and not self.scheduler.running:
                    raise RuntimeError("a request is larger than the simulated memory")
                self._wake.clear()
                await self._wake.wait()
                continue
            seconds = self._costs.seconds(self._load(chunks))
            if self.tier is not None:
                seconds = max(seconds, self.tier.wait(_digests(chunks)))
            self.busy_seconds += seconds
            await asyncio.sleep(seconds)
            self._finish(chunks)

    def _planned(self) -> list[Chunk]:
        """Return the next step's chunks; decode rows carry the drafts for which there are pages."""
        chunks = self.scheduler.schedule()
        if not self._shape.drafts:
            return chunks
        return [self._drafted(chunk) for chunk in chunks]

    def _drafted(self, chunk: Chunk) -> Chunk:
        sequence = chunk.sequence
        if chunk.count != 1 or not chunk.samples or not sequence.num_completion_tokens:
            return chunk
        wanted = min(self._shape.drafts, sequence.num_tokens_left - 1)
        fitting = self.scheduler.allocate_draft_pages(sequence, wanted) if wanted > 0 else 0
        return Chunk(sequence, 1, drafts_of(sequence, [TOKEN] * fitting, frozenset()))

    def _load(self, chunks: Sequence[Chunk]) -> StepLoad:
        load = StepLoad()
        for chunk in chunks:
            sequence, drafts = chunk.sequence, len(chunk.drafts)
            load.add(
                "" if sequence.adapter is None else sequence.adapter.sha256,
                chunk.count + drafts,
                sequence.num_computed + chunk.count + drafts,
                sampled=chunk.samples * (1 + drafts),
                decodes=chunk.count == 1 and chunk.samples,
            )
        return load

    def _finish(self, chunks: Sequence[Chunk]) -> None:
        """Account for the step as the engine does, and end the requests that have all their tokens."""
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.count
        self.scheduler.commit(chunks)
        for chunk in chunks:
            # A later chunk of the step never preempts, so every sequence of the step still runs.
            if chunk.sequence.num_remaining == 0:
                self._append(chunk)

    def _append(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        call, accepted = self._calls[sequence], self._accepted(len(chunk.drafts))
        sequence.token_ids += [TOKEN] * (1 + accepted)
        sequence.num_computed += accepted
        for _ in range(accepted):
            sequence.account.charge_output()
        self.num_tokens += 1 + accepted
        if not call.started.done():
            call.started.set_result(None)
        if sequence.num_completion_tokens < sequence.request.sampling.max_tokens:
            if chunk.drafts:
                self.scheduler.free_draft_pages(sequence)
            return
        sequence.finish_reason = FinishReason.LENGTH
        self.scheduler.finish(sequence)
        del self._calls[sequence]
        call.ended.set_result(None)

    def _accepted(self, drafts: int) -> int:
        accepted = 0
        while accepted < drafts and self._chance.random() < self._shape.acceptance:
            accepted += 1
        return accepted


def _digests(chunks: Sequence[Chunk]) -> set[str]:
    return {chunk.sequence.adapter.sha256 for chunk in chunks if chunk.sequence.adapter is not None}

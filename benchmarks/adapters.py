"""Throughput with 5 to 2,000 adapters on the demo model, in this process, through all memory tiers.

The method follows S-LoRA (Sheng et al., 2023, arXiv:2311.03285, table 3: 5.5% less at 2,000 adapters than at
5): rank 8 on q, k, v and o, adapters drawn uniformly or by Zipf's law with exponent 1. 64 adapters may be in
a batch, 500 in host memory, fewer than 700 on disk. The store is a function that returns a demo adapter's
bytes with one tensor randomized. So a load includes everything but the network: digest, disk cache, checks,
scaling, copies.

Each short round runs all scenarios, every other round in reverse order. Besides tokens per second, the
process's CPU time per token is reported: on a shared machine, only that resolves a few percent.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# As the worker does; libgomp reads it when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from safetensors.torch import load_file, save

from benchmarks.engine.adapters import SOURCE
from benchmarks.figure import Figure, compared
from benchmarks.processes import DEMO_MODEL, memory_mib
from contracts.adapters.reference import ADAPTER_FILES, AdapterRef, adapter_digest, engine_name
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.adapters.pool import AdapterPool
from worker_engine.config import EngineConfig
from worker_engine.protocol import GenerateRequest, SamplingParams
from worker_engine.service import Service

STREAMS: Final = 32
REQUESTS: Final = 64
PROMPT_TOKENS: Final = 32
NEW_TOKENS: Final = 48
ROUNDS: Final = 4
"""The median round counts; every round runs all scenarios, so that background load affects each of them."""
DEVICE_ADAPTERS: Final = 64
HOST_ADAPTERS: Final = 500
SCENARIOS: Final = (
    ("zipf", 5),
    ("zipf", 100),
    ("zipf", 500),
    ("zipf", 2000),
    ("uniform", 5),
    ("uniform", 2000),
)
GOAL: Final = 0.94


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Yield tokens/s at each number of adapters, compared with 5 drawn by the same law."""
    return iter(asyncio.run(_run(rounds=1 if quick else ROUNDS)))


async def _run(rounds: int) -> list[Figure]:
    sys.setswitchinterval(0.0005)  # as the worker does: a load's Python code delays decode steps
    with tempfile.TemporaryDirectory(prefix="graftwork-bench-") as cache:
        bench = _Bench(Path(cache))
        bench.service.start()
        try:
            # Start with the popular adapters resident, as after a while of traffic.
            await bench.warm(HOST_ADAPTERS)
            bench.identify(max(adapters for _, adapters in SCENARIOS))
            speeds: dict[tuple[str, int], list[float]] = {}
            costs: dict[tuple[str, int], list[float]] = {}
            memory: list[float] = []
            for number in range(rounds):
                for scenario in SCENARIOS[:: -1 if number % 2 else 1]:
                    started = time.process_time()
                    speeds.setdefault(scenario, []).append(await bench.round(*scenario))
                    spent = (time.process_time() - started) * 1000 / (REQUESTS * NEW_TOKENS)
                    costs.setdefault(scenario, []).append(spent)
                memory.append(memory_mib(os.getpid(), "VmRSS"))
        finally:
            await asyncio.to_thread(bench.service.stop)
        figures = [
            compared(
                "adapters",
                f"{law}_{adapters}_tokens_per_s",
                statistics.median(found),
                "token/s",
                baseline=statistics.median(speeds[law, 5]),
                goal=GOAL if law == "zipf" else None,
                note=f"{STREAMS} streams, {REQUESTS} requests of {PROMPT_TOKENS} + {NEW_TOKENS} tokens",
            )
            for (law, adapters), found in speeds.items()
            if adapters != 5
        ] + [
            compared(
                "adapters",
                f"{law}_{adapters}_cpu_ms_per_token",
                statistics.median(found),
                "ms",
                baseline=statistics.median(costs[law, 5]),
                goal=1 / GOAL if law == "zipf" else None,
                less_is_better=True,
                note="CPU time of the process, all threads",
            )
            for (law, adapters), found in costs.items()
            if adapters != 5
        ]
        note = "after the last round, beside the first"
        memory_figure = compared("adapters", "memory", memory[-1], "MiB", baseline=memory[0], note=note)
        return [*figures, memory_figure, *bench.tiers()]


class _Store(AdapterLoader):
    """A loader whose store generates files on request."""

    files: _Files

    def _fetch(self, uri: str, name: str) -> bytes:
        return self.files.files(int(uri.rpartition("/")[2]))[name]


class _Files:
    """Adapters by number: one tensor of the source is replaced by random values in place."""

    def __init__(self, source: Path) -> None:
        weights = {n: t.to(torch.bfloat16) for n, t in load_file(source / ADAPTER_FILES[1]).items()}
        self._config, self._data = (source / ADAPTER_FILES[0]).read_bytes(), save(weights, {"format": "pt"})
        self.nbytes = sum(tensor.nbytes for tensor in weights.values())
        header = int.from_bytes(self._data[:8], "little")
        name, self._first = next(iter(weights.items()))
        span = json.loads(self._data[8 : 8 + header])[name]["data_offsets"]
        self._start, self._stop = (8 + header + offset for offset in span)

    def files(self, index: int) -> dict[str, bytes]:
        drawn = torch.randn(self._first.shape, generator=torch.Generator().manual_seed(index))
        drawn = (drawn * self._first.float().std()).to(torch.bfloat16)
        data = bytearray(self._data)
        data[self._start : self._stop] = drawn.view(torch.uint8).numpy().tobytes()
        return {ADAPTER_FILES[0]: self._config, ADAPTER_FILES[1]: bytes(data)}


class _Bench:
    def __init__(self, cache: Path) -> None:
        config = EngineConfig(
            DEMO_MODEL, "base", device="cpu", max_adapters_per_batch=DEVICE_ADAPTERS, adapter_cache_dir=cache
        )
        self.service = Service(config)
        self._files = _Files(SOURCE)
        nbytes = self._files.nbytes
        loader = _Store(
            DEMO_MODEL, cache, dtype=torch.bfloat16, device=torch.device("cpu"), max_cache_bytes=700 * nbytes
        )
        loader.files = self._files
        self.service.adapters = AdapterPool(loader, max_bytes=HOST_ADAPTERS * nbytes)
        self._refs: dict[int, AdapterRef] = {}
        self._draw, self._numbers = random.Random(1), itertools.count()

    def ref(self, index: int) -> AdapterRef:
        if index not in self._refs:
            files = self._files.files(index)
            digest = adapter_digest({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
            name = engine_name(tenant="bench", adapter=f"a{index}", version=1, sha256=digest)
            self._refs[index] = AdapterRef(name, f"file:///{index}", digest, rank=8)
        return self._refs[index]

    async def warm(self, count: int) -> None:
        for index in reversed(range(count)):
            async with self.service.adapters.acquire(self.ref(index)):
                pass

    async def round(self, law: str, adapters: int) -> float:
        """Return the tokens per second of `REQUESTS` requests, `STREAMS` at a time."""
        waiting = iter(self.draw(law, adapters))
        start = time.perf_counter()
        counts = await asyncio.gather(*[self._stream(waiting) for _ in range(STREAMS)])
        took = time.perf_counter() - start
        if sum(counts) != REQUESTS * NEW_TOKENS:
            raise RuntimeError(f"{sum(counts)} tokens came, expected {REQUESTS * NEW_TOKENS}")
        return sum(counts) / took

    def identify(self, count: int) -> None:
        """Compute all digests in advance, which in production is the control plane's work."""
        for index in range(count):
            self.ref(index)

    def draw(self, law: str, adapters: int) -> list[AdapterRef]:
        """Return a round's adapters."""
        weights = [1 / (rank + 1) if law == "zipf" else 1.0 for rank in range(adapters)]
        return [self.ref(index) for index in self._draw.choices(range(adapters), weights, k=REQUESTS)]

    async def _stream(self, refs: Iterator[AdapterRef]) -> int:
        tokens = 0
        for ref in refs:
            prompt = tuple(self._draw.randrange(1000, 40000) for _ in range(PROMPT_TOKENS))
            sampling = SamplingParams(NEW_TOKENS, temperature=0.0, ignore_eos=True)
            request = GenerateRequest(str(next(self._numbers)), prompt, sampling, ref)
            async for delta in self.service.generate(request):
                tokens += len(delta.token_ids)
        return tokens

    def tiers(self) -> Iterator[Figure]:
        """Yield the tiers' contents and the sources of loads, over all scenarios."""
        pool, engine = self.service.adapters, self.service.engine
        found = ", ".join(f"{count} in {tier}" for tier, count in pool.found.items())
        yield Figure("adapters", "host_resident", pool.num_resident, "adapters", note=f"found {found}")
        held, tables = engine.scheduler.adapters.num_resident, engine.adapters.num_rebuilt
        yield Figure("adapters", "device_resident", held, "adapters", note=f"tables written {tables} times")
        peak = memory_mib(os.getpid(), "VmHWM")
        yield Figure("adapters", "peak_memory", round(peak, 1), "MiB", note="of this process")

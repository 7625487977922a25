"""Simulated throughput, TTFT and residency of GPU workers, by the engine's own scheduler and memory tiers.

`sizes.py` and `costs.py` have the model of a step's time, `worker.py` says which code of the product runs.
Every figure of a GPU is simulated. `cpu_engine.py` checks the simulator against the real engine on this CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import fields, replace
from typing import Final

from benchmarks.figure import Figure, compared
from benchmarks.processes import ROOT
from benchmarks.routing.workload import adapters, requests, trace
from benchmarks.simulator.costs import H100, H200, Accelerator, AdapterShape, Optimizations, StepCosts
from benchmarks.simulator.cpu_engine import compare
from benchmarks.simulator.experiment import Plan, Result, replay, spread, steady
from benchmarks.simulator.sizes import GPT_OSS_20B, LLAMA_8B, QWEN3_30B, ModelSizes
from benchmarks.simulator.worker import WorkerShape

CLIENTS: Final = 16
OWNERS: Final = 8
PROMPT, ANSWER = 1600, 600
"""The workload by which vendors state multi-LoRA serving of GPT-OSS-20B: 16 clients with 8 adapters."""
TURNS: Final = 8
FLEETS: Final = ((1, 1), (1, 100), (1, 1000), (4, 1000), (16, 1000), (16, 10_000), (64, 10_000))
"""Copies, and adapters over all of them."""
REQUESTS: Final = 300
"""Requests of a fleet's run for each copy; the trace begins anew when it ends."""
SHARE: Final = 0.7
"""Arrivals, as a share of the requests that one copy completes when all have one adapter."""
HOST_ADAPTERS: Final = 100
"""Adapters in one worker's host memory."""
DRAFTS: Final = 3
HOLDS_WITHIN: Final = 0.15
RANK_32: Final = AdapterShape(32)
ALL_ON: Final = Optimizations()
_MODEL: Final = ROOT / "var" / "models" / "smollm2-135m-instruct"
_SIMULATED: Final = "simulated; nothing was measured on a GPU"


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Yield the figures; `quick` replays a tenth, and compares with the real engine on few requests."""
    for model in (GPT_OSS_20B, QWEN3_30B, LLAMA_8B):
        for accelerator in (H100, H200):
            yield from _workload(model, accelerator)
    yield from _ladder()
    yield from _fleets(REQUESTS // 10 if quick else REQUESTS)
    for pair in compare(_MODEL, number=12 if quick else 120):
        for metric, unit, simulated, real in pair.figures():
            yield _held(f"{pair.name}_{metric}", unit, simulated, real)


def _held(metric: str, unit: str, simulated: float, real: float) -> Figure:
    """Return a simulated figure beside that of the real engine; the goal is a difference of 15% at most."""
    ratio = round(simulated / real, 3)
    return Figure(
        "simulator",
        f"cpu_engine_{metric}",
        round(simulated, 3),
        unit,
        round(real, 3),
        ratio,
        1.0,
        abs(ratio - 1) <= HOLDS_WITHIN,
        note="simulated, beside the real engine on this CPU; met within 15%; load average "
        f"{os.getloadavg()[0]:.1f}",
    )


def worker_shape(
    model: ModelSizes, accelerator: Accelerator, adapter: AdapterShape, *, drafts: int = 0
) -> WorkerShape:
    """Return a worker whose pool has nine tenths of the memory that the weights leave."""
    weights = 2 * (model.attention_weights + 2 * model.head_weights)
    weights += int(model.layers * model.experts * model.expert_bytes)
    adapter_bytes = model.adapter_bytes(adapter.rank, experts=adapter.experts)
    return WorkerShape(
        pool_bytes=0.9 * (accelerator.memory - weights),
        page_bytes=16 * model.layers * model.layer_token_bytes,
        adapter_bytes=adapter_bytes,
        host_bytes=HOST_ADAPTERS * adapter_bytes,
        copy_bandwidth=accelerator.copy_bandwidth,
        # The same rate as the published 64 ms of an adapter of 84 MB.
        disk_seconds=0.064 * adapter_bytes / 84e6,
        drafts=drafts,
    )


def _steady(
    model: ModelSizes,
    accelerator: Accelerator,
    *,
    adapter: AdapterShape | None = RANK_32,
    on: Optimizations = ALL_ON,
    drafts: int = 0,
) -> Result:
    """Run the vendors' workload; `adapter` None sends all requests to the base model."""
    shape = worker_shape(model, accelerator, adapter or AdapterShape(), drafts=drafts)
    costs = StepCosts(model, accelerator, adapter or AdapterShape(), on)
    owners = spread(adapters(OWNERS), CLIENTS) if adapter else [None] * CLIENTS
    return steady(Plan(shape, costs), owners, prompt=PROMPT, answer=ANSWER, turns=TURNS)


def _workload(model: ModelSizes, accelerator: Accelerator) -> Iterator[Figure]:
    """Yield the speed of one request of the vendors' workload, with adapters and without."""
    base = _steady(model, accelerator, adapter=None)
    where = f"{model.name}_{accelerator.name}"
    runs = {
        "rank_32": _steady(model, accelerator),
        "attention_rank_32": _steady(model, accelerator, adapter=AdapterShape(32, experts=False)),
        "rank_8": _steady(model, accelerator, adapter=AdapterShape(8)),
        f"rank_32_{DRAFTS}_drafts": _steady(model, accelerator, drafts=DRAFTS),
    }
    for name, result in runs.items():
        yield compared(
            "simulator",
            f"{where}_{name}_request_tokens_per_s",
            result.request_speed(50),
            "tokens/s",
            baseline=base.request_speed(50),
            note=f"{_SIMULATED}; baseline: the base model without drafts",
        )
        yield compared(
            "simulator",
            f"{where}_{name}_ttft_p50",
            1000 * result.ttft(50),
            "ms",
            baseline=1000 * base.ttft(50),
            note=_SIMULATED,
        )


def _ladder() -> Iterator[Figure]:
    """Yield the speed with each optimization off, and with all of them off."""
    whole = _steady(GPT_OSS_20B, H200).request_speed(50)
    off = {field.name: replace(Optimizations(), **{field.name: False}) for field in fields(Optimizations)}
    off["all"] = Optimizations(**dict.fromkeys(off, False))
    for name, on in off.items():
        # Adapters on attention alone show what an early exit is worth: with experts there is nothing to skip.
        adapter = AdapterShape(32, experts=name != "early_exit")
        baseline = whole if adapter.experts else _steady(GPT_OSS_20B, H200, adapter=adapter).request_speed(50)
        yield compared(
            "simulator",
            f"GPT-OSS-20B_H200_without_{name}_request_tokens_per_s",
            _steady(GPT_OSS_20B, H200, adapter=adapter, on=on).request_speed(50),
            "tokens/s",
            baseline=baseline,
            note=f"{_SIMULATED}; baseline: with every optimization",
        )


def _fleets(number: int) -> Iterator[Figure]:
    """Yield figures of the trace over fleets of copies."""
    rate = _capacity(number)
    note = f"{_SIMULATED}; {trace()[1]} at {SHARE:.0%} of {rate:.1f} requests/s a copy"
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        runs: dict[tuple[int, int], Future[Result]] = {
            fleet: pool.submit(_fleet, *fleet, SHARE * rate, number) for fleet in FLEETS
        }
        for (copies, count), job in runs.items():
            result, where = job.result(), f"{copies}_copies_{count}_adapters"
            for metric, value, unit in (
                ("tokens_per_s", result.tokens_per_second, "tokens/s"),
                ("ttft_p50", 1000 * result.ttft(50), "ms"),
                ("ttft_p99", 1000 * result.ttft(99), "ms"),
                ("in_memory", 100 * result.resident_share, "% of requests"),
                ("busy", 100 * result.busy, "%"),
            ):
                yield Figure("simulator", f"{where}_{metric}", round(value, 2), unit, note=note)


def _plan(copies: int) -> Plan:
    adapter = AdapterShape()
    return Plan(worker_shape(GPT_OSS_20B, H200, adapter), StepCosts(GPT_OSS_20B, H200, adapter), copies)


def _fleet(copies: int, count: int, rate: float, number: int) -> Result:
    sent = requests(trace()[0], adapters(count), rate=rate * copies, number=number * copies)
    return replay(_plan(copies), list(sent))


def _capacity(number: int) -> float:
    """Return the requests per second that a copy completes when all come at once with one adapter."""
    burst = list(requests(trace()[0], adapters(1), rate=10_000.0, number=number))
    return number / replay(_plan(1), burst, warm_share=0.0).seconds

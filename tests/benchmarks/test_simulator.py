"""The simulated worker keeps the engine's rules and the costs' arithmetic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.routing.virtual_time import VirtualTimeLoop
from benchmarks.routing.workload import Request, adapters
from benchmarks.simulator.costs import H200, AdapterShape, Optimizations, StepCosts, StepLoad
from benchmarks.simulator.cpu_engine import FittedCosts, features
from benchmarks.simulator.experiment import Plan, Result, replay, spread, steady
from benchmarks.simulator.sizes import GPT_OSS_20B, MXFP4_BITS, QWEN3_30B
from benchmarks.simulator.worker import SimulatedWorker, WorkerShape

SHAPE = WorkerShape(
    pool_bytes=1000 * 16,
    page_bytes=16,
    adapter_bytes=160,
    host_bytes=4 * 160,
    copy_bandwidth=160.0,
    disk_seconds=0.5,
    max_num_seqs=4,
    step_tokens=32,
    max_adapters=2,
)


class Steady:
    """Each step takes a tenth of a second; `loads` has what the steps computed."""

    def __init__(self) -> None:
        self.loads: list[StepLoad] = []

    def seconds(self, load: StepLoad) -> float:
        self.loads.append(load)
        return 0.1


def load(rows: int, *, adapters: int = 0, sequences: int = 16) -> StepLoad:
    """Return a decode step of sequences with 1,900 tokens each, with equal shares of the rows."""
    each, found = rows // sequences, StepLoad()
    for index in range(sequences):
        adapter = f"adapter-{index % adapters}" if adapters else ""
        found.add(adapter, each, 1900, sampled=each, decodes=True)
    return found


@pytest.mark.parametrize(
    ("rows", "base", "lora"), [(16, 12.2, 1.58), (32, 13.2, 2.60), (64, 13.4, 3.97)], ids=str
)
def test_bytes_of_a_step_are_those_of_the_derivation(rows: int, base: float, lora: float) -> None:
    costs = StepCosts(GPT_OSS_20B, H200, AdapterShape(32))
    assert costs.num_bytes(load(rows)) / 1e9 == pytest.approx(base, abs=0.05)
    assert costs.lora_bytes(load(rows, adapters=8)) / 1e9 == pytest.approx(lora, abs=0.02)


def test_experts_of_a_wide_model_fill_with_the_rows() -> None:
    costs = StepCosts(QWEN3_30B, replace(H200, attainable=1.0))
    assert costs.num_bytes(load(16)) / 1e9 == pytest.approx(42.8, abs=0.1)
    assert costs.num_bytes(load(64)) / 1e9 == pytest.approx(62.5, abs=0.1)


@pytest.mark.parametrize(
    "name", ["packed_experts", "real_rank", "fused", "graphs", "dependent_launch", "windows"]
)
def test_a_step_takes_longer_without_an_optimization(name: str) -> None:
    whole = StepCosts(GPT_OSS_20B, H200)
    without = replace(whole, on=replace(Optimizations(), **{name: False}))
    assert without.seconds(load(16, adapters=8)) > whole.seconds(load(16, adapters=8))


def test_without_early_exit_attention_adapters_cost_as_much_as_whole_ones() -> None:
    attention = AdapterShape(32, experts=False)
    slow = StepCosts(GPT_OSS_20B, H200, attention, replace(Optimizations(), early_exit=False))
    assert slow.lora_bytes(load(16, adapters=8)) == StepCosts(GPT_OSS_20B, H200).lora_bytes(
        load(16, adapters=8)
    )
    assert StepCosts(GPT_OSS_20B, H200, attention).lora_bytes(load(16, adapters=8)) < 0.3e9


def test_packed_experts_are_a_quarter_of_bf16() -> None:
    assert GPT_OSS_20B.expert_bits == MXFP4_BITS
    widened = StepCosts(GPT_OSS_20B, H200, on=replace(Optimizations(), packed_experts=False)).served
    assert widened.expert_bytes == 16 / MXFP4_BITS * GPT_OSS_20B.expert_bytes


def test_every_request_gets_its_tokens_and_memory_comes_back() -> None:
    costs = Steady()
    result = run(costs, SHAPE, [(index % 3, 40, 5) for index in range(12)])
    assert [one.tokens for one in result.served] == [5] * 12
    assert sum(sum(step.rows.values()) for step in costs.loads) == 12 * (40 + 5 - 1)


def test_a_batch_has_no_more_adapters_than_slots() -> None:
    costs = Steady()
    run(costs, SHAPE, [(index, 8, 3) for index in range(4)])
    assert max(len(step.rows) for step in costs.loads) == 2


def test_a_first_request_waits_for_the_disk_and_the_copy() -> None:
    [first, second] = run(Steady(), SHAPE, [(0, 8, 2)], turns=2).served
    assert first.ttft >= 0.5 / 3.2 + 1.0
    assert second.ttft == pytest.approx(0.1)


def test_drafts_that_are_right_save_steps() -> None:
    plain, drafted = Steady(), Steady()
    run(plain, SHAPE, [(0, 8, 20)])
    run(drafted, replace(SHAPE, drafts=3, acceptance=1.0), [(0, 8, 20)])
    assert len(plain.loads) == 20
    assert len(drafted.loads) == 6  # the first step has no drafts, five give four tokens each
    assert sum(sum(step.rows.values()) for step in drafted.loads) == 8 + 19


def test_an_adapter_that_was_evicted_is_read_again() -> None:
    sent = [Request(10.0 * index, adapters(6)[index % 6], 8, 2) for index in range(12)]
    assert replay(Plan(SHAPE, Steady()), sent, warm_share=0.0).loads == 12
    assert replay(Plan(replace(SHAPE, host_bytes=6 * 160), Steady()), sent, warm_share=0.0).loads == 6


def test_routing_keeps_an_adapter_on_one_copy() -> None:
    sent = [Request(2.0 * index, adapters(6)[index % 6], 8, 2) for index in range(36)]
    ours = replay(Plan(SHAPE, Steady(), copies=3), sent, warm_share=0.0)
    assert ours.loads == 6
    assert replay(Plan(SHAPE, Steady(), copies=3, policy="random"), sent, warm_share=0.0).loads > 12


def test_steady_clients_keep_the_batch_full() -> None:
    costs = Steady()
    result = steady(Plan(SHAPE, costs), spread(adapters(2), 4), prompt=8, answer=8, turns=3)
    assert len(result.served) == 8  # the first turn of each client is not counted
    assert result.request_speed(50) == pytest.approx(10.0)


def test_a_thread_of_simulated_time_ends_when_its_seconds_have_passed() -> None:
    async def wait() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        await asyncio.gather(*[asyncio.to_thread(loop.block, seconds) for seconds in (2.0, 5.0)])
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return loop.time(), 0.0

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(wait()) == (5.0, 0.0)


def test_the_fit_finds_the_weights_that_made_the_times() -> None:
    loads = [load(rows * 16, adapters=1 + rows % 3) for rows in range(1, 12)]
    for index, one in enumerate(loads):
        one.contexts = [(1, 50 * index * index)]
        one.sampled = index % 5
    seconds = [0.01 + 0.001 * features(one)[1] + 1e-6 * features(one)[2] for one in loads]
    fitted = FittedCosts.fit(loads, seconds)
    assert [fitted.seconds(one) for one in loads] == pytest.approx(seconds, rel=1e-6)
    assert all(weight >= 0 for weight in fitted.weights)


def run(
    costs: Steady, shape: WorkerShape, calls: Sequence[tuple[int, int, int]], *, turns: int = 1
) -> Result:
    """Send all calls at once, each as adapter, prompt and answer; `turns` times one after another."""
    refs = adapters(1 + max(adapter for adapter, _, _ in calls))

    async def serve() -> Result:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        worker = SimulatedWorker(shape, costs, loop)
        steps = loop.create_task(worker.run())
        served = []
        for _ in range(turns):
            served += await asyncio.gather(
                *[worker.serve(refs[adapter], prompt, answer) for adapter, prompt, answer in calls]
            )
        steps.cancel()
        assert worker.pending == 0
        assert worker.scheduler.idle
        assert worker.scheduler.adapters.num_active == 0
        return Result(served, loop.time(), 0.0, 0, 0, len(served))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(serve())

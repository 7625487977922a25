"""The simulated vLLM servers behave as vLLM does where routing can see it, and the routing benchmark runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from benchmarks.routing.engine import EngineShape, SimulatedEngine
from benchmarks.routing.experiment import Plan, simulate
from benchmarks.routing.policies import POLICIES
from benchmarks.routing.server import SimulatedServer
from benchmarks.routing.virtual_time import VirtualTimeLoop
from benchmarks.routing.workload import SHORT_TRACE, adapters, requests
from contracts.recipes.trace_rows import read_rows
from gateway.routing.load_reports import of_vllm

pytestmark = pytest.mark.slow
SHAPE = EngineShape(disk_spread=0.0, max_loras=2, max_cpu_loras=3)
T = TypeVar("T")


def in_virtual_time(engine: SimulatedEngine, work: Coroutine[Any, Any, T]) -> T:
    async def run() -> T:
        steps = asyncio.create_task(engine.run())
        try:
            return await work
        finally:
            steps.cancel()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


def test_a_prompt_is_computed_in_chunks_and_tokens_follow_one_a_step() -> None:
    engine = SimulatedEngine(SHAPE, 1)

    async def work() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        job = engine.submit("", 3000, 11)
        await job.started
        first = loop.time()
        await job.ended
        return first, loop.time() - first

    first, rest = in_virtual_time(engine, work())
    assert first == pytest.approx(2 * SHAPE.step + 3000 * SHAPE.prompt_token)
    assert rest == pytest.approx(10 * (SHAPE.step + SHAPE.decode_token + 3005.5 * SHAPE.context_token))


def test_a_third_adapter_waits_for_a_slot_and_the_base_model_does_not() -> None:
    engine = SimulatedEngine(SHAPE, 1)
    order: list[str] = []

    async def one(adapter: str, answer: int) -> None:
        job = engine.submit(adapter, 10, answer)
        await job.started
        order.append(f"{adapter} starts")
        await job.ended
        order.append(f"{adapter} ends")

    async def work() -> None:
        await asyncio.gather(one("a", 50), one("b", 90), one("c", 20), one("", 100))

    in_virtual_time(engine, work())
    assert order.index("a ends") < order.index("c starts") < order.index("b ends")
    assert order.index(" starts") < order.index("a ends")
    assert engine.disk_loads == 3


def test_the_api_is_vllms() -> None:
    server = SimulatedServer("base", SimulatedEngine(SHAPE, 1))
    name = "t_acme.a_x.v1." + "a" * 12
    load, body = {"lora_name": name, "lora_path": "/x"}, {"model": name, "prompt": "one two", "max_tokens": 3}

    async def work() -> None:
        assert (await server.post("/v1/completions", body)).status == 404
        assert (await server.post("/v1/load_lora_adapter", load)).status == 200
        repeated = await server.post("/v1/load_lora_adapter", load)
        assert (repeated.status, b"already" in repeated.body) == (400, True)
        job = (await server.post("/v1/completions", body)).job
        assert job is not None
        await job.started
        report = of_vllm(server.get("/metrics").body, server.get("/v1/models").body)
        assert (report.pending, report.busy, report.slots) == (1, frozenset({name}), 2)
        assert report.names == frozenset({name})
        await job.ended
        assert (await server.post("/v1/unload_lora_adapter", load)).status == 200
        assert (await server.post("/v1/unload_lora_adapter", load)).status == 404
        assert (server.get("/health").status, server.get("/version").status) == (200, 200)

    in_virtual_time(server.engine, work())
    assert server.engine.disk_loads == 1


def test_every_policy_gets_the_same_requests_and_ours_loads_the_fewest_adapters() -> None:
    with SHORT_TRACE.open() as lines:
        rows = read_rows(lines, SHORT_TRACE.name, arrivals=True)
    sent = list(requests(rows, adapters(200), rate=6.0, number=600))
    assert sent == list(requests(rows, adapters(200), rate=6.0, number=600))
    assert sent[-1].at == pytest.approx(600 / 6.0, rel=0.2)
    plan = Plan("graftwork", 4, gateways=2, shape=replace(SHAPE, max_loras=16, max_cpu_loras=40))
    results = {policy: simulate(replace(plan, policy=policy), sent) for policy in POLICIES}
    ours = results.pop("graftwork")
    assert len(ours.outcomes) == 360
    assert simulate(plan, sent).outcomes == ours.outcomes, "a run is repeatable"
    for other in results.values():
        assert ours.loads_per_1000 < 0.7 * other.loads_per_1000
        assert ours.waited_share < 0.7 * other.waited_share
        assert ours.ttft(50) < other.ttft(50)

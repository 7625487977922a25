"""One run in virtual time: gateways, servers, a policy and an arrival rate."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.routing.engine import EngineShape, SimulatedEngine
from benchmarks.routing.gateways import SERVED, Outcome, SimulatedGateway, base_route
from benchmarks.routing.policies import make_fleet
from benchmarks.routing.server import SimulatedServer
from benchmarks.routing.virtual_time import VirtualTimeLoop
from benchmarks.routing.workload import Request

WARM_SHARE: Final = 0.4
"""Share of the requests, the first ones, that fill the servers' memory and are not counted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run.

    Attributes:
        gateways: processes among which requests are spread at random.
        knows_slots: False to hide from routing how many adapters fit into a batch.
    """

    policy: str
    servers: int
    gateways: int = 4
    shape: EngineShape = field(default_factory=EngineShape)
    seed: int = 1
    knows_slots: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of the requests after the warm-up.

    Attributes:
        loads: adapters that the servers read from disk meanwhile.
        late: seconds from the last arrival to the last request's end.
    """

    outcomes: Sequence[Outcome]
    loads: int
    late: float

    @property
    def loads_per_1000(self) -> float:
        return 1000 * self.loads / len(self.outcomes)

    @property
    def waited_share(self) -> float:
        return sum(outcome.loaded for outcome in self.outcomes) / len(self.outcomes)

    def ttft(self, percent: float) -> float:
        """Return the nearest-rank percentile of the TTFT, in seconds."""
        ordered = sorted(outcome.ttft for outcome in self.outcomes)
        return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def simulate(plan: Plan, requests: Iterable[Request]) -> Result:
    """Run the requests to their ends, and return the figures."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(_run(plan, list(requests)))


async def _run(plan: Plan, requests: Sequence[Request]) -> Result:
    loop = asyncio.get_running_loop()
    urls = [f"sim://{index}" for index in range(plan.servers)]
    servers = {
        url: SimulatedServer(SERVED, SimulatedEngine(plan.shape, plan.seed + index))
        for index, url in enumerate(urls)
    }
    route = base_route(urls, max_adapters=plan.shape.max_cpu_loras)
    gateways = [
        SimulatedGateway(
            make_fleet(plan.policy, loop.time, plan.seed + index),
            route,
            servers,
            knows_slots=plan.knows_slots,
        )
        for index in range(plan.gateways)
    ]
    background = [loop.create_task(server.engine.run()) for server in servers.values()]
    chance, warm = random.Random(plan.seed), int(WARM_SHARE * len(requests))
    background += [loop.create_task(gateway.poll(chance.random())) for gateway in gateways]
    calls: list[asyncio.Task[Outcome]] = []
    loads_before = 0
    for index, request in enumerate(requests):
        if request.at > loop.time():
            await asyncio.sleep(request.at - loop.time())
        if index == warm:
            loads_before = sum(server.engine.disk_loads for server in servers.values())
        calls.append(loop.create_task(chance.choice(gateways).serve(request)))
    outcomes = await asyncio.gather(*calls)
    for task in background:
        task.cancel()
    loads = sum(server.engine.disk_loads for server in servers.values()) - loads_before
    return Result(outcomes[warm:], loads, loop.time() - requests[-1].at)

"""One simulated run: copies of a base model behind a gateway's routing, or one copy with steady clients."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.routing.policies import make_fleet
from benchmarks.routing.virtual_time import VirtualTimeLoop
from benchmarks.routing.workload import Request
from benchmarks.simulator.worker import Costs, Served, SimulatedWorker, WorkerShape
from contracts.adapters.reference import AdapterRef
from contracts.base_routes import CopyRoute
from gateway.routing.fleet import DIGEST, Fleet, Report
from gateway.routing.poller import INTERVAL_SECONDS

WARM_SHARE: Final = 0.25
"""Share of the requests, the first ones, that fill the memory tiers and are not counted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of `copies` workers of a shape."""

    shape: WorkerShape
    costs: Costs
    copies: int = 1
    policy: str = "graftwork"
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of the requests after the warm-up.

    Attributes:
        seconds: simulated, from the first of them to the last one's end.
        busy: mean share of the time in which a copy computes.
        loads: adapters read from disk, of all requests.
        copies_to_device: adapters copied to a device, of all requests.
    """

    served: Sequence[Served]
    seconds: float
    busy: float
    loads: int
    copies_to_device: int
    requests: int

    def ttft(self, percent: float) -> float:
        """Return the nearest-rank percentile of the TTFT, in seconds."""
        return _percentile([one.ttft for one in self.served], percent)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of all copies."""
        return sum(one.tokens for one in self.served) / self.seconds

    def request_speed(self, percent: float) -> float:
        """Return the nearest-rank percentile of a request's own output tokens per second."""
        return _percentile(
            [(one.tokens - 1) / one.decoding for one in self.served if one.tokens > 1], percent
        )

    @property
    def resident_share(self) -> float:
        """Share of the requests whose adapter was in host memory or in a shared load."""
        return 1 - self.loads / self.requests


def replay(plan: Plan, requests: Sequence[Request], *, warm_share: float = WARM_SHARE) -> Result:
    """Replay requests at their times; figures leave out the first `warm_share` of them."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(_replay(plan, requests, int(warm_share * len(requests))))


def steady(
    plan: Plan, adapters: Sequence[AdapterRef | None], *, prompt: int, answer: int, turns: int
) -> Result:
    """Run one client for each of `adapters` on one copy, each sending `turns` requests one after another."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(_steady(plan, adapters, prompt, answer, turns))


async def _steady(
    plan: Plan, adapters: Sequence[AdapterRef | None], prompt: int, answer: int, turns: int
) -> Result:
    loop = _loop()
    worker = SimulatedWorker(plan.shape, plan.costs, loop, seed=plan.seed)
    engine = loop.create_task(worker.run())
    begun = 0.0

    async def client(place: int, adapter: AdapterRef | None) -> list[Served]:
        # Clients begin one after another, so that their prompts do not meet in one step for ever.
        await asyncio.sleep(0.05 * place)
        return [await worker.serve(adapter, prompt, answer) for _ in range(turns)]

    clients = await asyncio.gather(*[client(place, adapter) for place, adapter in enumerate(adapters)])
    engine.cancel()
    served = [one for own in clients for one in own[1:]]
    return _result([worker], served, loop.time() - begun, turns * len(adapters))


async def _replay(plan: Plan, requests: Sequence[Request], warm: int) -> Result:
    loop = _loop()
    workers = {
        f"copy-{index}": SimulatedWorker(plan.shape, plan.costs, loop, seed=plan.seed + index)
        for index in range(plan.copies)
    }
    routes = tuple(CopyRoute(name, "worker", f"sim://{name}") for name in workers)
    fleet = make_fleet(plan.policy, loop.time, plan.seed)
    tasks = [loop.create_task(worker.run()) for worker in workers.values()]
    tasks.append(loop.create_task(_poll(fleet, workers)))
    calls: list[asyncio.Task[Served]] = []
    begun = 0.0
    for index, request in enumerate(requests):
        if request.at > loop.time():
            await asyncio.sleep(request.at - loop.time())
        if index == warm:
            begun = loop.time()
        calls.append(loop.create_task(_serve(fleet, routes, workers, request)))
    served = await asyncio.gather(*calls)
    for task in tasks:
        task.cancel()
    return _result(list(workers.values()), served[warm:], loop.time() - begun, len(requests))


async def _serve(
    fleet: Fleet, routes: Sequence[CopyRoute], workers: dict[str, SimulatedWorker], request: Request
) -> Served:
    """Serve one request at the copy that the gateway chooses."""
    copy = fleet.choose(routes, request.adapter, lambda: b"")
    if copy is None:
        raise RuntimeError("no copy accepts a request, although none has failed")
    slot = fleet.acquire(copy, request.adapter)
    try:
        served = await workers[copy.id].serve(request.adapter, max(1, request.prompt), max(1, request.answer))
        slot.succeeded()
    finally:
        slot.release()
    return served


async def _poll(fleet: Fleet, workers: dict[str, SimulatedWorker]) -> None:
    """Read the copies' reports once an interval, as the gateway does of workers."""
    loop = asyncio.get_running_loop()
    while True:
        for name, worker in workers.items():
            copy, adapters = (
                fleet.copy(name),
                frozenset(digest[:DIGEST] for digest in worker.adapters.digests),
            )
            copy.report = Report(worker.pending, adapters, loop.time(), copy.in_flight)
        await asyncio.sleep(INTERVAL_SECONDS)


def _loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


def _result(
    workers: Sequence[SimulatedWorker], served: Sequence[Served], seconds: float, requests: int
) -> Result:
    total = asyncio.get_running_loop().time()
    return Result(
        served,
        seconds,
        sum(worker.busy_seconds for worker in workers) / (len(workers) * total),
        sum(worker.adapters.found["disk"] for worker in workers),
        sum(worker.tier.num_loads for worker in workers if worker.tier is not None),
        requests,
    )


def _percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def spread(refs: Sequence[AdapterRef], clients: int, *, seed: int = 3) -> list[AdapterRef]:
    """Deal adapters to clients in turn, in a seeded order."""
    owners = [refs[index % len(refs)] for index in range(clients)]
    random.Random(seed).shuffle(owners)
    return owners

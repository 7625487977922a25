"""The gateway's routing of adapters over simulated vLLM servers, against random and least-loaded routing.

`engine.py` has the model of a server's time and the sources of its parameters, `gateways.py` says which code
of the gateway is measured. The large runs are in virtual time. A small one is repeated in real time through a
gateway process, to check that the simulation's figures hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from benchmarks.figure import Figure, compared
from benchmarks.routing import real_gateway
from benchmarks.routing.engine import EngineShape
from benchmarks.routing.experiment import WARM_SHARE, Plan, Result, simulate
from benchmarks.routing.policies import POLICIES
from benchmarks.routing.workload import Request, adapters, requests, trace

SERVERS: Final = 50
ADAPTERS: Final = 5000
REQUESTS: Final = 16_000
UTILISATIONS: Final = (0.3, 0.6, 0.9)
FEW_SLOTS: Final = 16
"""Adapter slots of the run that shows what knowing the slots is worth."""
SMALL: Final = (10, 500, 1500)
"""Servers, adapters and requests of the run in real time."""
_OURS: Final = "graftwork"


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Yield the figures; `quick` simulates a tenth of everything, and runs nothing in real time."""
    part = 10 if quick else 1
    rate = capacity()
    yield Figure("routing", "capacity_of_a_server", round(rate, 3), "requests/s", note=_capacity_note())
    plans: dict[tuple[str, float, int, bool], Plan] = {}
    for share in UTILISATIONS:
        for policy in POLICIES:
            plans[policy, share, 0, True] = Plan(policy, SERVERS // part)
    few = EngineShape(max_loras=FEW_SLOTS)
    for known in (True, False):
        plans[_OURS, 0.6, FEW_SLOTS, known] = Plan(_OURS, SERVERS // part, shape=few, knows_slots=known)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        sizes = (ADAPTERS // part, REQUESTS // part)
        jobs = {key: pool.submit(_simulated, plan, key[1] * rate, *sizes) for key, plan in plans.items()}
        for share in UTILISATIONS:
            results = {policy: jobs[policy, share, 0, True].result() for policy in POLICIES}
            yield from _figures(f"at_{share:.0%}".replace("%", "_percent"), results)
        slots = {
            name: jobs[_OURS, 0.6, FEW_SLOTS, name == _OURS].result() for name in (_OURS, "slots_unknown")
        }
        yield from _figures(f"at_60_percent_with_{FEW_SLOTS}_slots", slots)
    if not quick:
        yield from _real_time(0.6 * rate)


def capacity() -> float:
    """Return the requests per second that one server completes when all have the same adapter."""
    burst = list(requests(trace()[0], adapters(1), rate=1000.0, number=1000))
    result = simulate(Plan(_OURS, 1, gateways=1), burst)
    return len(burst) / (burst[-1].at + result.late)


def _simulated(plan: Plan, rate: float, num_adapters: int, number: int) -> Result:
    """Run a plan at `rate` requests per second and server."""
    total = rate * plan.servers
    return simulate(plan, requests(trace()[0], adapters(num_adapters), rate=total, number=number))


def _figures(where: str, results: Mapping[str, Result]) -> Iterator[Figure]:
    ours = results[_OURS]
    for name, other in results.items():
        if name == _OURS:
            continue
        pairs = (
            ("loads_per_1000", ours.loads_per_1000, other.loads_per_1000, "loads"),
            ("ttft_p50", ours.ttft(50) * 1000, other.ttft(50) * 1000, "ms"),
            ("ttft_p99", ours.ttft(99) * 1000, other.ttft(99) * 1000, "ms"),
            ("waited_for_load", 100 * ours.waited_share, 100 * other.waited_share, "%"),
        )
        for metric, value, baseline, unit in pairs:
            goal = 1.0 if metric in ("loads_per_1000", "ttft_p99") and name in POLICIES else None
            yield compared(
                "routing",
                f"{where}_{metric}_vs_{name}",
                value,
                unit,
                baseline=baseline,
                goal=goal,
                less_is_better=True,
                note=f"{len(ours.outcomes)} requests after a warm-up of {WARM_SHARE:.0%}",
            )


def _real_time(rate: float) -> Iterator[Figure]:
    """Compare the gateway process with the simulation of the same requests."""
    servers, num_adapters, number = SMALL
    refs = adapters(num_adapters)
    sent: Sequence[Request] = list(requests(trace()[0], refs, rate=rate * servers, number=number))
    simulated = simulate(Plan(_OURS, servers, gateways=1), sent)
    real = real_gateway.measure(refs, sent, servers=servers)
    note = (
        f"{servers} servers, {num_adapters} adapters; the baseline is the simulation of the same requests; "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    for metric, unit, value, baseline in (
        ("loads_per_1000", "loads", real.loads_per_1000, simulated.loads_per_1000),
        ("ttft_p50", "ms", real.ttft(50) * 1000, simulated.ttft(50) * 1000),
        ("ttft_p99", "ms", real.ttft(99) * 1000, simulated.ttft(99) * 1000),
    ):
        yield compared("routing", f"gateway_process_{metric}", value, unit, baseline=baseline, note=note)


def _capacity_note() -> str:
    rows, name = trace()
    return f"one adapter, {len(rows)} requests of {name}; 100% utilisation of {SERVERS} servers"

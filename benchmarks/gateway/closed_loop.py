"""As fast as it goes, by a fixed number of connections: rates, CPU time, added latency.

Every round runs every target once, so that a busy machine slows all of them alike; medians are reported.
Beside the rates stands the CPU time that a target's own processes spent on a request: it tells what a proxy
costs even where other work on the machine slows the clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks import load
from benchmarks.figure import Figure, compared
from benchmarks.gateway.peers import PEERS
from benchmarks.gateway.targets import KEY, PLAIN, STREAM, Target

ROUNDS: Final = 3
SECONDS: Final = 3
CONNECTIONS: Final = 16
GOAL_OF_CEILING: Final = 0.6
ADDED_MS_GOAL: Final = 0.5
_GOALS: Final = {("litellm", "requests"): 30.0, ("litellm", "streams"): 60.0, ("portkey", "requests"): 2.0}
"""Times the peer's rate."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of one target."""

    requests: float
    streams: float
    p50_ms: float
    request_cpu_us: float
    stream_cpu_us: float
    generator: str


@dataclass(frozen=True, slots=True)
class _Run:
    load: load.Load
    cpu_us: float
    """CPU time of the target per answer."""


_NOTHING: Final = _Run(load.Load(0.0, 0.0, ""), 0.0)


def rounds(targets: Mapping[str, Target]) -> dict[str, Measured]:
    """Puts load on each target in turn, ROUNDS times."""
    seen: dict[str, list[tuple[_Run, _Run, _Run]]] = {name: [] for name in targets}
    for number in range(ROUNDS + 1):
        for name, target in targets.items():
            seconds = SECONDS if number else 1  # the first round warms up
            plain = _load(target, PLAIN, CONNECTIONS, seconds)
            stream = _load(target, STREAM, CONNECTIONS, seconds) if target.streams else _NOTHING
            single = _load(target, PLAIN, 1, seconds)
            if number:
                seen[name].append((plain, stream, single))
    median = statistics.median
    return {
        name: Measured(
            requests=median(plain.load.per_second for plain, _, _ in runs),
            streams=median(stream.load.per_second for _, stream, _ in runs),
            p50_ms=median(single.load.p50_ms for _, _, single in runs),
            request_cpu_us=median(plain.cpu_us for plain, _, _ in runs),
            stream_cpu_us=median(stream.cpu_us for _, stream, _ in runs),
            generator=runs[0][0].load.generator,
        )
        for name, runs in seen.items()
    }


def figures(measured: Mapping[str, Measured]) -> Iterator[Figure]:
    """Our gateway beside the ceiling and beside each peer that was measured."""
    yield from _against_ceiling(measured)
    for peer in PEERS:
        if peer.name in measured:
            yield from _against_peer(measured, peer.name, peer.note)


def _against_ceiling(measured: Mapping[str, Measured]) -> Iterator[Figure]:
    ours, bare, direct = measured["gateway"], measured["ceiling"], measured["direct"]
    own = measured["own ceiling"]
    note = f"{ours.generator}, {CONNECTIONS} connections; direct to the backend: "
    for metric, rate, ceiling, backend, same in (
        ("requests", ours.requests, bare.requests, direct.requests, own.requests),
        ("streams of 64 events", ours.streams, bare.streams, direct.streams, own.streams),
    ):
        told = f"{note}{backend:.0f}; baseline: bare pass-through under granian; under ours: {same:.0f}"
        yield compared("gateway", metric, rate, "1/s", baseline=ceiling, goal=GOAL_OF_CEILING, note=told)
    for metric, value, baseline, same in (
        ("CPU of a request", ours.request_cpu_us, bare.request_cpu_us, own.request_cpu_us),
        ("CPU of a stream", ours.stream_cpu_us, bare.stream_cpu_us, own.stream_cpu_us),
    ):
        yield compared(
            "gateway",
            metric,
            value,
            "us",
            baseline=baseline,
            goal=round(1 / GOAL_OF_CEILING, 2),
            less_is_better=True,
            note="user and system time of its processes; baseline: bare pass-through under granian; "
            f"under ours: {same:.0f}",
        )
    added = ours.p50_ms - direct.p50_ms
    yield Figure(
        "gateway",
        "added p50 at 1 connection",
        round(added, 3),
        "ms",
        goal=ADDED_MS_GOAL,
        met=added <= ADDED_MS_GOAL,
        note=f"at most the goal; one synchronous write a request; direct: {direct.p50_ms:.3f} ms; "
        f"bare pass-through adds {bare.p50_ms - direct.p50_ms:.3f} ms, under our server "
        f"{own.p50_ms - direct.p50_ms:.3f} ms",
    )


def _against_peer(measured: Mapping[str, Measured], name: str, note: str) -> Iterator[Figure]:
    ours, theirs, direct = measured["gateway"], measured[name], measured["direct"]
    note = f"{ours.generator}, {CONNECTIONS} connections; baseline: {note}"
    for metric, rate, baseline in (
        ("requests", ours.requests, theirs.requests),
        ("streams", ours.streams, theirs.streams),
    ):
        if baseline:
            title, goal = f"{metric} beside {name}", _GOALS.get((name, metric))
            yield compared("gateway", title, rate, "1/s", baseline=baseline, goal=goal, note=note)
    mine, other = ours.p50_ms - direct.p50_ms, theirs.p50_ms - direct.p50_ms
    yield compared("gateway", f"added p50 beside {name}", mine, "ms", baseline=other, note="1 connection")


def _load(target: Target, body: bytes, connections: int, seconds: int) -> _Run:
    before = target.cpu_seconds()
    url = target.url + "/v1/chat/completions"
    seen = load.run(url, body, KEY, connections=connections, seconds=seconds, headers=target.headers)
    spent = target.cpu_seconds() - before
    return _Run(seen, spent / max(1.0, seen.per_second * seconds) * 1e6)

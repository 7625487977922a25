"""Times of calls: replays of a captured graph on CUDA, a clock on CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

Call = Callable[[], object]

REPLAY_US: Final = 1000.0
"""A graph holds the calls often enough to last about so long: its own start, a few us, is then under 1%."""
MOST_NODES: Final = 4096


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one call.

    Attributes:
        low_us, high_us: 10th and 90th percentile of the samples.
        how: "graph" (replays between two events), "events" (launches between two events: slower than the
            device where the launches are) or "clock".
        samples: each the mean over one pass through all inputs.
    """

    median_us: float
    low_us: float
    high_us: float
    how: str
    samples: int

    def to_json(self) -> dict[str, Any]:
        return {
            "median": round(self.median_us, 3),
            "p10": round(self.low_us, 3),
            "p90": round(self.high_us, 3),
            "how": self.how,
            "samples": self.samples,
        }


def time_calls(groups: Sequence[Sequence[Call]], device: torch.device, *, rounds: int = 20) -> list[Timing]:
    """Times each group's calls, the groups in turn so that a change of clocks meets all of them.

    Args:
        groups: implementations; each a call per input set. Sets together larger than the L2 cache keep a
            call from finding its inputs there.
        rounds: samples of each group, after one that warms up.
    """
    passes = [_prepare(calls, device) for calls in groups]
    samples: list[list[float]] = [[] for _ in groups]
    for index in range(rounds + 1):
        for (one_pass, _, count), kept in zip(passes, samples, strict=True):
            took = _clock(one_pass, device) / count
            if index:
                kept.append(took)
    return [_timing(kept, how) for kept, (_, how, _) in zip(samples, passes, strict=True)]


def host_us(call: Call, device: torch.device, *, rounds: int = 5) -> float:
    """Median wall-clock microseconds of work on the host that ends when the device has what it was sent."""
    times: list[float] = []
    for _ in range(rounds + 1):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[1:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timing(samples: Sequence[float], how: str) -> Timing:
    ordered = sorted(samples)
    last = len(ordered) - 1
    low, high = ordered[round(0.1 * last)], ordered[round(0.9 * last)]
    return Timing(statistics.median(ordered), low, high, how, len(ordered))


def _prepare(calls: Sequence[Call], device: torch.device) -> tuple[Call, str, int]:
    """A function that runs all calls (some times over), how it is timed, and how many calls it makes."""

    def all_calls() -> None:
        for call in calls:
            call()

    all_calls()  # compiles, fills caches of pointers
    synchronize(device)
    if device.type != "cuda":
        return all_calls, "clock", len(calls)
    try:
        once = _capture(calls, 1)
        once()
        repeats = round(REPLAY_US / max(_clock(once, device), 1.0))
        repeats = max(1, min(repeats, MOST_NODES // len(calls)))
        return _capture(calls, repeats), "graph", repeats * len(calls)
    except RuntimeError:  # an op that cannot be captured
        torch.cuda.synchronize(device)
        return all_calls, "events", len(calls)


def captured(call: Call, device: torch.device) -> Call:
    """Return the replay of a call recorded in a CUDA graph; on a CPU the call itself."""
    if device.type != "cuda":
        return call
    call()  # compiles
    synchronize(device)
    return _capture([call], 1)


def _capture(calls: Sequence[Call], repeats: int) -> Call:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    return graph.replay


def _clock(call: Call, device: torch.device) -> float:
    """Microseconds of one call, on the device's own clock where it has one."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6
    begin, end = _event(), _event()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

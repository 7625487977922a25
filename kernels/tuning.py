"""How configurations are searched for: what an op tells of itself, the clock, and the search."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from kernels import tuned

if TYPE_CHECKING:
    import torch

REPLAYS: Final = 15
PASSES: Final = 2
"""Times that the search goes over all numbers, at most."""
GAIN: Final = 0.98
"""A change must take less than so much of the best time: less is the clock's noise."""


class Trial(Protocol):
    """An op's inputs at one shape, ready to run.

    Attributes:
        sets: how many input sets there are.
    """

    sets: int

    def calls(self, config: Any) -> Sequence[Callable[[], None]]:
        """One launch of the op per input set; what a batch plans once is done here."""

    def error(self, config: Any) -> float:
        """Relative error of one launch against the specification; NaN where outputs were not written."""


class Tuning(Protocol):
    """What an op tells of itself.

    Attributes:
        op: its name, as files have it.
        levels: names of a shape's numbers, the weightiest first.
        tolerance: largest `Trial.error` of a right result.
    """

    op: str
    levels: tuple[str, ...]
    tolerance: float

    def shapes(self, *, quick: bool) -> Sequence[tuned.Shape]:
        """What to tune, the most wanted first."""

    def parse(self, values: Mapping[str, object]) -> Any:
        """A configuration, a frozen dataclass with `written`; ValueError where it is none."""

    def default(self, shape: tuned.Shape) -> Any:
        """The built-in configuration."""

    def axes(self, shape: tuned.Shape, *, quick: bool) -> Mapping[str, Sequence[object]]:
        """Values to try of each of a configuration's numbers."""

    def fits(self, shape: tuned.Shape, config: Any, shared_memory: int) -> bool:
        """Whether registers and shared memory (bytes a block) hold it, by estimate; no launch is made."""

    def trial(self, shape: tuned.Shape, device: torch.device, cache: int, *, quick: bool) -> Trial:
        """Random inputs: sets that together exceed `cache` bytes."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Times configurations on a device, up to a moment of time.monotonic().

    Attributes:
        shared_memory: bytes that a block may have.
        cache: bytes that input sets must exceed.
    """

    device: torch.device
    shared_memory: int
    cache: int
    quick: bool
    until: float

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until

    def microseconds(self, calls: Sequence[Callable[[], None]]) -> float:
        """Median time of one call."""
        if self.device.type != "cuda":
            started = time.perf_counter()
            calls[0]()
            return (time.perf_counter() - started) * 1e6
        return _replayed(calls) / len(calls)


def _replayed(calls: Sequence[Callable[[], None]]) -> float:
    """Median microseconds of a graph that holds each call once."""
    import torch

    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times: list[float] = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times[2:])[(REPLAYS - 2) // 2]  # the first two warm the clocks up


def search(tuning: Tuning, shape: tuned.Shape, clock: Clock) -> dict[str, Any] | None:
    """The entry of a shape; None when time ran out or the built-in configuration does not run.

    From the built-in configuration it changes one number at a time and keeps what is faster, until no
    change helps. Nothing is timed before its result is right.
    """
    trial = tuning.trial(shape, clock.device, clock.cache, quick=clock.quick)
    axes = tuning.axes(shape, quick=clock.quick)
    built_in = tuning.default(shape)
    seen = {built_in: _measure(tuning, trial, built_in, clock)}
    best = built_in
    for _ in range(1 if clock.quick else PASSES):
        before = best
        for name, value in ((name, value) for name, values in axes.items() for value in values):
            config = _changed(tuning, shape, best, {name: value}, clock)
            if config is None:
                continue
            if clock.over:
                return None
            if config not in seen:
                seen[config] = _measure(tuning, trial, config, clock)
            if seen[config] < GAIN * seen[best]:
                best = config
        if best == before:
            break
    if math.isinf(seen[best]):
        return None
    return {
        "shape": dict(shape),
        "config": best.written(),
        "microseconds": round(seen[best], 3),
        "default_microseconds": None if math.isinf(seen[built_in]) else round(seen[built_in], 3),
    }


def _changed(
    tuning: Tuning, shape: tuned.Shape, config: Any, change: Mapping[str, object], clock: Clock
) -> Any:
    """The configuration with one number changed; None where it is no configuration or does not fit."""
    try:
        changed = replace(config, **change)
    except ValueError:
        return None
    return changed if tuning.fits(shape, changed, clock.shared_memory) else None


def _measure(tuning: Tuning, trial: Trial, config: Any, clock: Clock) -> float:
    """Microseconds; infinite where it does not fit the device or is wrong."""
    from triton.runtime.errors import OutOfResources, PTXASError

    try:
        error = trial.error(config)
        if not error <= tuning.tolerance:
            print(f"    wrong by {error}: {config}", file=sys.stderr)
            return math.inf
        return clock.microseconds(trial.calls(config))
    except (OutOfResources, PTXASError) as refused:
        print(f"    {refused}: {config}", file=sys.stderr)
        return math.inf

"""How configurations are searched for: what an op tells of itself, the clock, and the search."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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

    def calls(self, config: Any) -> Sequence[Callable[[], object]]:
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
        """Values to try of each of a configuration's numbers, those first that promise most."""

    def fits(self, shape: tuned.Shape, config: Any, shared_memory: int) -> bool:
        """Whether it is worth a trial, by estimate; no launch is made.

        Registers and shared memory (bytes a block) must hold it, and no size may exceed what the shape has.
        """

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

    def microseconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """Median time of one call."""
        if self.device.type != "cuda":
            started = time.perf_counter()
            calls[0]()
            return (time.perf_counter() - started) * 1e6
        return _replayed(calls) / len(calls)


def _replayed(calls: Sequence[Callable[[], object]]) -> float:
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


def search(
    tuning: Tuning,
    shape: tuned.Shape,
    clock: Clock,
    *,
    held: Mapping[str, Any] | None = None,
    likely: Any = None,
    keep: Callable[[dict[str, Any]], None] = lambda entry: None,
) -> dict[str, Any] | None:
    """The entry of a shape; None when nothing that was tried runs.

    From the built-in configuration it changes one number at a time and keeps what is faster, until no
    change helps. Nothing is timed before its result is right. When time runs out the entry is the fastest
    so far, and its trials let a further search go on with the others.

    Args:
        held: the entry of a search that was broken off. Its times are taken as they are.
        likely: tried right after the built-in one.
        keep: called with the entry so far before each trial, in which that trial counts as failed: one that
            hangs or ends the process is not tried again.
    """
    course = _Course(tuning, shape, clock, _trials(tuning, held), keep)
    built_in = course.measured(course.built_in)
    finished = built_in and all(course.measured(config) for config in course.walk(likely))
    return course.entry(finished=finished)


def candidates(tuning: Tuning, shape: tuned.Shape, clock: Clock) -> int:
    """How many configurations a search tries at least: all that the built-in one's numbers lead to singly."""
    axes = tuning.axes(shape, quick=clock.quick)
    return 1 + sum(len(_changed(tuning, shape, clock, tuning.default(shape), name)) for name in axes)


def _changed(tuning: Tuning, shape: tuned.Shape, clock: Clock, config: Any, name: str) -> list[Any]:
    """All that differ from a configuration in this number and fit, small changes first."""
    held = getattr(config, name)
    values = tuning.axes(shape, quick=clock.quick)[name]
    found = []
    for value in sorted(values, key=partial(_distance, held)):
        try:
            changed = replace(config, **{name: value})
        except ValueError:
            continue  # no configuration has these numbers together
        if value != held and tuning.fits(shape, changed, clock.shared_memory):
            found.append(changed)
    return found


def _distance(one: Any, other: Any) -> float:
    """Between two values of a number or a flag, by ratio."""
    return abs(math.log2((1 + one) / (1 + other)))


def _trials(tuning: Tuning, held: Mapping[str, Any] | None) -> dict[Any, float]:
    trials = (held or {}).get(tuned.TRIALS, ())
    return {tuning.parse(config): math.inf if took is None else took for config, took in trials}


class _Course:
    """A search under way.

    Attributes:
        seen: microseconds of what was tried; infinite where it does not run or is wrong.
        best: the fastest so far.
    """

    def __init__(
        self,
        tuning: Tuning,
        shape: tuned.Shape,
        clock: Clock,
        seen: dict[Any, float],
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        self._tuning, self._shape, self._clock, self._keep = tuning, shape, clock, keep
        self._trial = tuning.trial(shape, clock.device, clock.cache, quick=clock.quick)
        self.built_in = self.best = tuning.default(shape)
        self.seen = seen

    def walk(self, likely: Any) -> Iterator[Any]:
        """What to try next, from the best so far on."""
        if likely is not None and self._tuning.fits(self._shape, likely, self._clock.shared_memory):
            yield likely
        for _ in range(1 if self._clock.quick else PASSES):
            before = self.best
            for name in self._tuning.axes(self._shape, quick=self._clock.quick):
                yield from _changed(self._tuning, self._shape, self._clock, self.best, name)
            if self.best == before:
                return

    def measured(self, config: Any) -> bool:
        """Tries a configuration unless it was; False when there is no time for it."""
        if config not in self.seen:
            if self._clock.over:
                return False
            self.seen[config] = math.inf
            if so_far := self.entry(finished=False):
                self._keep(so_far)
            self.seen[config] = _measure(self._tuning, self._trial, config, self._clock)
        if self.seen[config] < GAIN * self.seen[self.best]:
            self.best = config
        return True

    def entry(self, *, finished: bool) -> dict[str, Any] | None:
        """What the file shall hold; None as long as nothing runs."""
        best, built_in = self.seen.get(self.best, math.inf), self.seen.get(self.built_in, math.inf)
        if math.isinf(best):
            return None
        entry = {
            "shape": dict(self._shape),
            "config": self.best.written(),
            "microseconds": best,
            "default_microseconds": None if math.isinf(built_in) else built_in,
            "tried": len(self.seen),
        }
        trials = [[one.written(), None if math.isinf(took) else took] for one, took in self.seen.items()]
        return entry if finished else entry | {tuned.TRIALS: trials}


def _measure(tuning: Tuning, trial: Trial, config: Any, clock: Clock) -> float:
    """Microseconds; infinite where it does not fit the device or is wrong."""
    from triton.runtime.errors import OutOfResources, PTXASError

    try:
        error = trial.error(config)
        if not error <= tuning.tolerance:
            print(f"    wrong by {error}: {config}", file=sys.stderr)
            return math.inf
        return round(clock.microseconds(trial.calls(config)), 3)
    except (OutOfResources, PTXASError) as refused:
        print(f"    {refused}: {config}", file=sys.stderr)
        return math.inf

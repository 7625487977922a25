"""Search for the fastest configurations: an op's interface to it, the clock, and the search itself."""

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
"""Most passes of the search over all numbers."""
GAIN: Final = 0.98
"""Largest ratio to the best time that counts as a gain; larger ratios are within the clock's noise."""


class Trial(Protocol):
    """An op's inputs at one shape, ready to run.

    Attributes:
        sets: number of input sets.
    """

    sets: int

    def calls(self, config: Any) -> Sequence[Callable[[], object]]:
        """Return one launch of the op per input set; work that is done once per batch happens here."""

    def error(self, config: Any) -> float:
        """Return the relative error of one launch against the reference; NaN if outputs were not written."""


class Tuning(Protocol):
    """An op's interface to the search.

    Attributes:
        op: its name, as in file names.
        levels: names of a shape's numbers, most significant first.
        tolerance: largest `Trial.error` of a correct result.
    """

    op: str
    levels: tuple[str, ...]
    tolerance: float

    def shapes(self, *, quick: bool) -> Sequence[tuned.Shape]:
        """Return the shapes to tune, most important first."""

    def parse(self, values: Mapping[str, object]) -> Any:
        """Return a configuration, a frozen dataclass with `written`. Raises ValueError if malformed."""

    def default(self, shape: tuned.Shape) -> Any:
        """Return the built-in configuration."""

    def axes(self, shape: tuned.Shape, *, quick: bool) -> Mapping[str, Sequence[object]]:
        """Return the values to try for each of a configuration's numbers, most promising first."""

    def fits(self, shape: tuned.Shape, config: Any, shared_memory: int) -> bool:
        """Return True if the configuration is worth a trial, by estimate without a launch.

        Registers and shared memory (bytes per block) must suffice, and no size may exceed what the shape
        needs.
        """

    def trial(self, shape: tuned.Shape, device: torch.device, cache: int, *, quick: bool) -> Trial:
        """Return random inputs: sets that together exceed `cache` bytes."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Times configurations on a device, until a time.monotonic() deadline.

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
        """Return the median time of one call."""
        if self.device.type != "cuda":
            started = time.perf_counter()
            calls[0]()
            return (time.perf_counter() - started) * 1e6
        return _replayed(calls) / len(calls)


def _replayed(calls: Sequence[Callable[[], object]]) -> float:
    """Return the median microseconds of a graph that holds each call once."""
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
    return sorted(times[2:])[(REPLAYS - 2) // 2]  # the first two let the GPU's clocks ramp up


def search(
    tuning: Tuning,
    shape: tuned.Shape,
    clock: Clock,
    *,
    held: Mapping[str, Any] | None = None,
    likely: Any = None,
    keep: Callable[[dict[str, Any]], None] = lambda entry: None,
) -> dict[str, Any] | None:
    """Return the entry of a shape; None when no configuration runs.

    Starting from the built-in configuration, change one number at a time and keep the faster one, until no
    change helps. Results are verified before they are timed. When time runs out, the entry is the fastest so
    far, and its trials let a later search continue.

    Args:
        held: the entry of an interrupted search, whose times are reused.
        likely: tried right after the built-in one.
        keep: called with the entry so far before each trial, which counts as failed in it. So a trial that
            hangs or ends the process is not repeated.
    """
    course = _Search(tuning, shape, clock, _trials(tuning, held), keep)
    built_in = course.measured(course.built_in)
    finished = built_in and all(course.measured(config) for config in course.walk(likely))
    return course.entry(finished=finished)


def candidates(tuning: Tuning, shape: tuned.Shape, clock: Clock) -> int:
    """Return the least number of trials of a search: all single changes of the built-in configuration."""
    axes = tuning.axes(shape, quick=clock.quick)
    return 1 + sum(len(_changed(tuning, shape, clock, tuning.default(shape), name)) for name in axes)


def _changed(tuning: Tuning, shape: tuned.Shape, clock: Clock, config: Any, name: str) -> list[Any]:
    """Return all fitting configurations that differ in this number only, small changes first."""
    held = getattr(config, name)
    values = tuning.axes(shape, quick=clock.quick)[name]
    found = []
    for value in sorted(values, key=partial(_distance, held)):
        try:
            changed = replace(config, **{name: value})
        except ValueError:
            continue  # the configuration forbids this combination
        if value != held and tuning.fits(shape, changed, clock.shared_memory):
            found.append(changed)
    return found


def _distance(one: Any, other: Any) -> float:
    """Return the distance between two values of a number or a flag, by ratio."""
    return abs(math.log2((1 + one) / (1 + other)))


def _trials(tuning: Tuning, held: Mapping[str, Any] | None) -> dict[Any, float]:
    trials = (held or {}).get(tuned.TRIALS, ())
    return {tuning.parse(config): math.inf if took is None else took for config, took in trials}


class _Search:
    """A search in progress.

    Attributes:
        seen: microseconds by configuration tried; infinite if it does not run or is wrong.
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
        """Yield the next configurations to try, starting from the best so far."""
        if likely is not None and self._tuning.fits(self._shape, likely, self._clock.shared_memory):
            yield likely
        for _ in range(1 if self._clock.quick else PASSES):
            before = self.best
            for name in self._tuning.axes(self._shape, quick=self._clock.quick):
                yield from _changed(self._tuning, self._shape, self._clock, self.best, name)
            if self.best == before:
                return

    def measured(self, config: Any) -> bool:
        """Try a configuration unless it was tried before; return False if time has run out."""
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
        """Return the entry for the file; None while nothing runs."""
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
    """Return microseconds; infinite if it does not fit the device or is wrong."""
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

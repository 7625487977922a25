"""Measured step times by number of rows, on this machine under its current load."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Final

import torch

SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
"""Steps are grouped by rows, up to each of these sizes."""
FIRST: Final = 5
"""Steps that are averaged before outliers are capped."""
SHARE: Final = 0.1
"""Weight of a new time in the average thereafter. It is equal for all sizes; otherwise rare sizes would seem
more expensive than frequent ones.
"""
OUTLIER: Final = 1.5
"""Times beyond this multiple of the average are capped to it."""
FADE: Final = 64
"""Steps after which a measurement's weight, relative to other sizes, halves."""
SHAPE: Final[dict[str, tuple[tuple[int, float], ...]]] = {
    "cpu": ((1, 1.0), (4, 1.2), (8, 1.7), (16, 3.0), (32, 6.0), (128, 23.0)),
    "cuda": ((1, 1.0), (64, 1.2), (256, 2.0)),
}
"""Step times before they are measured, as multiples of a one-row step: (rows, multiple).

Of SmolLM2-135M's linear layers (kernels/native/README.md): up to 8 rows they are memory-bound, then
compute-bound. The GPU's values are an unmeasured guess.
"""


def step_clock(device: torch.device) -> Callable[[], float]:
    """Return the clock, in seconds, that measures step times.

    On a CPU it is this process's CPU time, because wall time on a shared machine varies with other processes.
    The calling thread's time alone would miss the other threads' work, which dominates large steps.
    """
    return time.process_time if device.type == "cpu" else time.perf_counter


class _Measured:
    """Averaged times of steps with similar numbers of rows."""

    __slots__ = ("count", "last", "rows", "seconds")

    def __init__(self) -> None:
        self.rows = self.seconds = 0.0
        self.count = self.last = 0

    def add(self, rows: int, seconds: float) -> None:
        self.count += 1
        share = max(SHARE, 1 / self.count)
        if self.count > FIRST:
            seconds = min(seconds, OUTLIER * self.seconds)
        self.rows += share * (rows - self.rows)
        self.seconds += share * (seconds - self.seconds)


class StepCosts:
    """Seconds by rows: interpolates measured step times linearly; never decreasing in rows."""

    def __init__(self, device: str) -> None:
        """`device` is a key of `SHAPE`."""
        self._shape = SHAPE[device]
        self._measured: dict[int, _Measured] = {}
        self._points: list[tuple[float, float]] = []
        self._steps = 0

    def observe(self, rows: int, seconds: float) -> None:
        """Record that a step of `rows` rows took `seconds`."""
        self._steps += 1
        size = bisect_left(SIZES, rows)
        measured = self._measured.get(size)
        if measured is None:
            measured = self._measured[size] = _Measured()
        measured.add(rows, seconds)
        measured.last = self._steps
        self._points = self._rising()

    @property
    def measured(self) -> bool:
        return bool(self._points)

    def age(self, rows: int) -> int:
        """Return the number of steps since one with a similar number of rows was measured."""
        measured = self._measured.get(bisect_left(SIZES, rows))
        return self._steps - (0 if measured is None else measured.last)

    def _rising(self) -> list[tuple[float, float]]:
        """Return (rows, seconds) sorted by rows; decreasing runs are replaced by their weighted mean."""
        pools: list[tuple[float, float, list[float]]] = []
        for item in sorted(self._measured.values(), key=lambda item: item.rows):
            weight = min(item.count, FIRST) / (1 + (self._steps - item.last) / FADE)
            mean, rows = item.seconds, [item.rows]
            while pools and pools[-1][0] >= mean:
                before, heavier, others = pools.pop()
                mean = (mean * weight + before * heavier) / (weight + heavier)
                weight, rows = weight + heavier, others + rows
            pools.append((mean, weight, rows))
        return [(rows, mean) for mean, _, pool in pools for rows in pool]

    def seconds(self, rows: int) -> float:
        """Return the expected time of a step with `rows` rows; before measurements, relative to one row."""
        points, shape = self._points, _line(self._shape, rows)
        if not points:
            return shape
        if points[0][0] <= rows <= points[-1][0]:
            return _line(points, rows)
        known, seconds = points[0] if rows < points[0][0] else points[-1]
        return seconds * shape / _line(self._shape, known)


def _line(points: Items[tuple[float, float]], x: float) -> float:
    """Interpolate at `x` the piecewise linear function through `points`, extrapolated at both ends."""
    if len(points) == 1:
        return points[0][1]
    right = min(max(bisect_left(points, (x, 0.0)), 1), len(points) - 1)
    (start, low), (beyond, high) = points[right - 1], points[right]
    return low + (high - low) * (x - start) / (beyond - start)

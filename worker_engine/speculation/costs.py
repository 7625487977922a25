"""What a step costs by its rows, as it was measured on this machine under what runs on it now."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Final

import torch

SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
"""Rows of a step are told apart up to these."""
FIRST: Final = 5
"""Steps whose times are averaged before an outlier is one."""
SHARE: Final = 0.1
"""Of a new time in the average then. The same for shorter and longer ones: a size of step that is seen seldom
would else seem dearer than one that is seen often."""
OUTLIER: Final = 1.5
"""A time beyond so many times the average counts as that."""
FADE: Final = 64
"""Steps after which a measurement weighs half as much beside one of another number of rows."""
SHAPE: Final[dict[str, tuple[tuple[int, float], ...]]] = {
    "cpu": ((1, 1.0), (4, 1.2), (8, 1.7), (16, 3.0), (32, 6.0), (128, 23.0)),
    "cuda": ((1, 1.0), (64, 1.2), (256, 2.0)),
}
"""What steps of some rows cost, as multiples of one row's, before they are measured.

Of SmolLM2-135M's linear layers (kernels/native/README.md): up to 8 rows they wait for memory, then they
compute. A GPU's is a guess that nothing has measured.
"""


def step_clock(device: torch.device) -> Callable[[], float]:
    """Seconds that tell what a step costs.

    On a CPU those that this process computed: what others take from a shared machine is in the time on the
    wall, in some steps and not in others, and says nothing of rows. The calling thread's alone would say too
    little of large steps, of which the other threads compute more.
    """
    return time.process_time if device.type == "cpu" else time.perf_counter


class _Measured:
    """Steps of about as many rows."""

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
    """Seconds by rows: what steps took that were measured, straight lines between them; never falling."""

    def __init__(self, device: str) -> None:
        """`device` is of `SHAPE`."""
        self._shape = SHAPE[device]
        self._measured: dict[int, _Measured] = {}
        self._points: list[tuple[float, float]] = []
        self._steps = 0

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took so long."""
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
        """Steps since one of about as many rows was measured."""
        measured = self._measured.get(bisect_left(SIZES, rows))
        return self._steps - (0 if measured is None else measured.last)

    def _rising(self) -> list[tuple[float, float]]:
        """The measurements, those averaged that say that more rows take less time."""
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
        """Expected of a step of `rows` rows; in multiples of one row's before anything was measured."""
        points, shape = self._points, _line(self._shape, rows)
        if not points:
            return shape
        if points[0][0] <= rows <= points[-1][0]:
            return _line(points, rows)
        known, seconds = points[0] if rows < points[0][0] else points[-1]
        return seconds * shape / _line(self._shape, known)


def _line(points: Items[tuple[float, float]], at: float) -> float:
    """The value at `at` of straight lines through `points`, the last of which goes on."""
    if len(points) == 1:
        return points[0][1]
    right = min(max(bisect_left(points, (at, 0.0)), 1), len(points) - 1)
    (x, low), (beyond, high) = points[right - 1], points[right]
    return low + (high - low) * (at - x) / (beyond - x)

"""What a step costs by its rows, as it was measured on this machine under what runs on it now."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
"""Rows of a step are told apart up to these."""
FIRST: Final = 5
"""Steps whose times are averaged before the shares below hold."""
SHARES: Final = (0.2, 0.04)
"""Of a new time in what is expected, where it is shorter and where it is longer.

A step can be held up by whatever else runs on the machine and never be too quick, so that what it costs is
near the shorter of its times.
"""
FADE: Final = 64
"""Steps after which a measurement weighs half as much beside one of another number of rows."""
SLOPE: Final = {"cpu": 0.12, "cuda": 0.005}
"""What a row more costs, as a share of a step of one row, before it is measured.

SmolLM2-135M in bf16 on 2 cores: 8.6 ms at 1 row, 15.7 at 8. A GPU's is a guess that nothing has measured.
"""


class _Measured:
    """Steps of about as many rows."""

    __slots__ = ("count", "last", "rows", "seconds")

    def __init__(self) -> None:
        self.rows = self.seconds = 0.0
        self.count = self.last = 0

    def add(self, rows: int, seconds: float) -> None:
        self.count += 1
        share = SHARES[seconds > self.seconds] if self.count > FIRST else 1 / self.count
        self.rows += share * (rows - self.rows)
        self.seconds += share * (seconds - self.seconds)


class StepCosts:
    """Seconds by rows: what steps took that were measured, straight lines between them; never falling."""

    def __init__(self, slope: float) -> None:
        self._slope = slope
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
        """Expected of a step of `rows` rows; relative to nothing known, 1 for none."""
        points = self._points
        if not points:
            return 1 + self._slope * rows
        at = bisect_left(points, (rows, 0.0))
        if at == len(points) or at == 0:
            known, seconds = points[at - 1] if at else points[0]
            return seconds * (1 + self._slope * rows) / (1 + self._slope * known)
        (fewer, less), (more, longer) = points[at - 1], points[at]
        return less + (longer - less) * (rows - fewer) / (more - fewer)

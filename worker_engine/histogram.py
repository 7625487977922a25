"""A histogram in Prometheus' text form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0
)  # fmt: skip
"""Upper bounds from a decode step on a GPU to a long wait in a queue."""


class Histogram:
    """Counts of observations by upper bound. One thread observes; any may read, a few counts late."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        """`bounds` ascending; one more bucket takes what is above them all."""
        if list(bounds) != sorted(set(bounds)):
            raise ValueError(f"bounds must ascend, got {list(bounds)}")
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def lines(self, name: str, labels: str = "") -> list[str]:
        """Samples of the metric `name`; `labels` is `key="value",...` or empty."""
        counts, before = list(self._counts), f"{labels}," if labels else ""
        lines, below = [], 0
        for bound, count in zip((*self._bounds, "+Inf"), counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{{before}le="{bound}"}} {below}')
        suffix = f"{{{labels}}}" if labels else ""
        return [*lines, f"{name}_sum{suffix} {self._total:.6f}", f"{name}_count{suffix} {below}"]

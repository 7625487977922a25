"""Counters, gauges and histograms over a process's cells."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

from gateway.observability.cells import CellFile
from gateway.observability.families import FAMILIES, Family


def label_text(labels: Mapping[str, str]) -> str:
    """Return `key="value",...` in the Prometheus text format."""
    return ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items())


def _escape(value: str) -> str:
    # A tab would end the index's field; no accepted label contains one.
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", " ")


class Counter:
    """One series that only grows."""

    __slots__ = ("_at", "_values")

    def __init__(self, file: CellFile, family: Family, **labels: str) -> None:
        self._values = file.values
        self._at = file.series(family.name, label_text(labels), family.width)

    def add(self, count: float = 1.0) -> None:
        self._values[self._at] += count


class Mirror:
    """A counter that follows an attribute counted elsewhere in this process."""

    __slots__ = ("_counter", "_last")

    def __init__(self, file: CellFile, family: Family, **labels: str) -> None:
        self._counter = Counter(file, family, **labels)
        self._last = 0

    def follow(self, value: int) -> None:
        """Add the attribute's growth; a lower `value` means that it started again from 0."""
        self._counter.add(value - self._last if value >= self._last else value)
        self._last = value


class Histogram:
    """Counts of observations by upper bound, and their sum."""

    __slots__ = ("_at", "_bounds", "_sum", "_values")

    def __init__(self, file: CellFile, family: Family, **labels: str) -> None:
        self._values = file.values
        self._bounds = family.bounds
        self._at = file.series(family.name, label_text(labels), family.width)
        self._sum = self._at + family.width - 1

    def observe(self, value: float, count: int = 1) -> None:
        values = self._values
        values[self._at + bisect_left(self._bounds, value)] += count
        values[self._sum] += value * count


class Gauges:
    """The gauges of this process. Each heartbeat sets them all; those that it leaves out disappear."""

    def __init__(self, file: CellFile) -> None:
        self._file = file
        kinds = {family.name for family in FAMILIES if family.kind == "gauge"}
        # The gauges of the slot's former owner are outdated.
        self._set = {series.at for series in file.known() if series.family in kinds}

    def set_all(self, gauges: Mapping[tuple[Family, str], float]) -> None:
        """Set all gauges; `gauges` is by family and label text."""
        values, stale = self._file.values, self._set
        self._set = set()
        for (family, labels), value in gauges.items():
            at = self._file.series(family.name, labels, 1)
            values[at] = value
            self._set.add(at)
        for at in stale - self._set:
            values[at] = math.nan

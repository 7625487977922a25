"""Metrics by adapter, for the most used adapters; all others share one series.

The set is updated by recent use at each settlement, so that thousands of unused adapters cost nothing. An
adapter that leaves the set loses its series, and counts from 0 when it returns. Each process has its own set:
these series carry `process`.
"""

from __future__ import annotations

from heapq import nlargest
from typing import Final

from gateway.observability.cells import CellFile
from gateway.observability.families import ADAPTER_CELLS, ADAPTERS

_CANDIDATES: Final = 20_000
"""Most adapters whose use is counted between two settlements."""
_FORGET: Final = 0.8
"""Decay of a count at each settlement: half of it is left after half a minute."""
_BETTER: Final = 1.5
"""A newcomer must exceed the replaced adapter's use by this factor, so that two equals do not alternate."""
_WIDTH: Final = len(ADAPTER_CELLS)


class AdapterFigures:
    """Metrics of adapters, by engine name."""

    def __init__(self, file: CellFile, places: int) -> None:
        """At most `places` adapters get their own series."""
        self._file = file
        self._places = [file.series(ADAPTERS, str(slot), _WIDTH) for slot in range(places)]
        self._others = file.series(ADAPTERS, "", _WIDTH)
        self._at = {name: at for slot, at in enumerate(self._places) if (name := file.name(slot))}
        self._slots = {name: slot for slot in range(places) if (name := file.name(slot))}
        self._use: dict[str, float] = {}

    @property
    def named(self) -> int:
        return len(self._at)

    def record(
        self, adapter: str, *, ok: bool, prompt: int, cached: int, completion: int, ttft_ms: float | None
    ) -> None:
        """Count one attempt with `adapter`, an engine name."""
        use = self._use
        if adapter in use or len(use) < _CANDIDATES:
            use[adapter] = use.get(adapter, 0.0) + 1.0
        at = self._at.get(adapter)
        if at is None:
            at = self._others if len(self._at) >= len(self._places) else self._name(adapter)
        values = self._file.values
        values[at if ok else at + 1] += 1
        values[at + 2] += prompt
        values[at + 3] += cached
        values[at + 4] += completion
        if ttft_ms is not None:
            values[at + 5] += ttft_ms / 1000
            values[at + 6] += 1

    def settle(self) -> None:
        """Give the series to the most used adapters."""
        use, named = self._use, self._at
        leavers = iter(sorted(named, key=lambda name: use.get(name, 0.0)))
        for newcomer in nlargest(len(self._places), use, key=lambda name: use[name]):
            if newcomer in named:
                continue
            leaver = next(leavers, None)
            if leaver is None or use[newcomer] <= _BETTER * use.get(leaver, 0.0):
                break
            self._take(self._slots.pop(leaver), named.pop(leaver), newcomer)
        self._use = {name: count * _FORGET for name, count in use.items() if count * _FORGET >= 0.5}

    def _name(self, adapter: str) -> int:
        taken = set(self._slots.values())
        slot = next(number for number in range(len(self._places)) if number not in taken)
        self._take(slot, self._places[slot], adapter)
        return self._places[slot]

    def _take(self, slot: int, at: int, adapter: str) -> None:
        self._file.rename(slot, adapter, at, _WIDTH)
        self._at[adapter], self._slots[adapter] = at, slot

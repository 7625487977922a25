"""Pack a base model's traffic onto as few copies as possible, and assign adapters to copies.

Punica's rule (Chen et al., 2023): few busy copies instead of many idle ones, since a batch of many adapters
costs little more than a batch of few. Adapters are packed by first fit, the busiest first, within a copy's
limits on concurrent sequences and adapters in memory. An adapter too busy for one copy is split over several.
An adapter stays on a copy that already serves it if it fits, so that little moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

HEADROOM: Final = 0.7
"""Share of a copy's sequences that a plan fills; the rest absorbs a burst until a new copy serves."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Observed traffic of one adapter; "" means the base model.

    Attributes:
        concurrency: mean number of concurrent requests.
        copies: ids of copies that served it; the first one served most of it.
    """

    adapter: str
    concurrency: float
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """New streams of `adapter` go to `to` and no longer to `away`."""

    adapter: str
    away: tuple[str, ...]
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A packing of traffic onto copies.

    Attributes:
        keep: copies that suffice, the busiest first; spare: the others.
        placed: copies by adapter.
        load: planned concurrent requests by copy.
        short: concurrent requests that fit on no copy; 0 if all fit.
    """

    keep: tuple[str, ...]
    spare: tuple[str, ...]
    placed: Mapping[str, tuple[str, ...]]
    moves: tuple[Move, ...]
    load: Mapping[str, float]
    short: float = 0.0

    @property
    def saved(self) -> int:
        return len(self.spare)


@dataclass(slots=True)
class _Bin:
    copy: str
    load: float = 0.0
    adapters: set[str] = field(default_factory=set)

    def has_room(self, adapter: str, part: float, room: float, most: int) -> bool:
        """Return True if `part` more concurrent requests of `adapter` fit."""
        held = (self.adapters | {adapter}) - {""}
        return self.load + part <= room + 1e-9 and (not adapter or len(held) <= most)


def plan(
    copies: Sequence[str], traffic: Sequence[Traffic], *, sequences: int, adapters: int, least: int = 1
) -> Plan:
    """Pack `traffic` onto as few of `copies` as possible.

    Args:
        copies: ids, in order of preference to keep.
        sequences: concurrent sequences per copy.
        adapters: adapters in memory per copy.
        least: minimum number of copies to keep, whatever the traffic.
    """
    room = HEADROOM * sequences
    bins = {copy: _Bin(copy) for copy in copies}
    placed: dict[str, list[str]] = {}
    short = 0.0
    for item in sorted(traffic, key=lambda item: (-item.concurrency, item.adapter)):
        parts = max(1, math.ceil(item.concurrency / room))
        for _ in range(parts):
            part = item.concurrency / parts
            taken = placed.get(item.adapter, ())
            free = [each for each in bins.values() if each.copy not in taken]
            fits = [each for each in free if each.has_room(item.adapter, part, room, adapters)]
            found = _first(fits, item.copies)
            if found is None:
                short += part
                continue
            _put(found, item.adapter, part, placed)
    used = [copy for copy, each in bins.items() if each.adapters or each.load]
    idle = [copy for copy in copies if copy not in used]
    keep = used + idle[: max(0, least - len(used))]
    moves = tuple(
        Move(item.adapter, tuple(sorted(away)), tuple(placed[item.adapter]))
        for item in traffic
        if item.adapter in placed and (away := set(item.copies) - set(placed[item.adapter]))
    )
    return Plan(
        tuple(sorted(keep, key=lambda copy: -bins[copy].load)),
        tuple(copy for copy in copies if copy not in keep),
        {name: tuple(where) for name, where in placed.items()},
        moves,
        {copy: round(each.load, 6) for copy, each in bins.items()},
        round(short, 6),
    )


def _first(fits: Sequence[_Bin], homes: Sequence[str]) -> _Bin | None:
    """Choose a copy in use before an empty one, and first one that already serves the adapter."""
    ranked = sorted(fits, key=lambda each: (not each.adapters, each.copy not in homes))
    return ranked[0] if ranked else None


def _put(each: _Bin, adapter: str, part: float, placed: dict[str, list[str]]) -> None:
    each.load += part
    each.adapters.add(adapter)
    placed.setdefault(adapter, []).append(each.copy)

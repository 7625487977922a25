"""Which copies of a base model are enough for its traffic, and which adapter belongs on which.

Punica's rule (Chen et al., 2023): few busy copies instead of many idle ones, since a batch of many adapters
costs little more than one of few. Adapters are packed onto copies by first fit, the busiest first, within
what a copy bears: sequences at a time, and adapters in memory. An adapter that fills a copy is split over as
many as it fills. Where a copy already serves an adapter it goes there if it fits: little moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

HEADROOM: Final = 0.7
"""Of a copy's sequences that a plan fills, so that a burst finds room before a new copy is there."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was seen of one adapter; "" names the base alone.

    Attributes:
        concurrency: mean requests at a time.
        copies: ids of copies that served it, the one that served most of it first.
    """

    adapter: str
    concurrency: float
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """New streams of `adapter` go to `to`, and no more to `away`."""

    adapter: str
    away: tuple[str, ...]
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was packed.

    Attributes:
        keep: copies that are enough, the busiest first; spare: the others.
        placed: copies of each adapter.
        load: planned requests at a time by copy.
        short: requests at a time that find no room in any copy; 0 where all do.
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

    def bears(self, adapter: str, part: float, room: float, most: int) -> bool:
        """Whether `part` more requests at a time of `adapter` fit."""
        held = (self.adapters | {adapter}) - {""}
        return self.load + part <= room + 1e-9 and (not adapter or len(held) <= most)


def plan(
    copies: Sequence[str],
    traffic: Sequence[Traffic],
    *,
    sequences: int,
    adapters: int,
    least: int = 1,
) -> Plan:
    """Packs `traffic` onto as few of `copies` as bear it.

    Args:
        copies: ids, those to be kept first.
        sequences: that one copy runs together.
        adapters: that one copy holds in memory.
        least: copies that stay, whatever the traffic.
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
            fits = [each for each in free if each.bears(item.adapter, part, room, adapters)]
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
    """Of those in use before those that are empty, a home of the adapter's before another."""
    ranked = sorted(fits, key=lambda each: (not each.adapters, each.copy not in homes))
    return ranked[0] if ranked else None


def _put(each: _Bin, adapter: str, part: float, placed: dict[str, list[str]]) -> None:
    each.load += part
    each.adapters.add(adapter)
    placed.setdefault(adapter, []).append(each.copy)

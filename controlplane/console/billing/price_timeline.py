"""Price books on a time line for a template: a year before and a year after the selected day."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controlplane.billing import items
from controlplane.billing.in_force import Holding, MeterPrice

WIDTH: Final = 1000
"""Width of the drawing in its own units; the selected day is in the middle."""
_YEAR: Final = 365
_TOKENS: Final = (items.INPUT, items.CACHED_INPUT, items.OUTPUT, items.REASONING)
_SCALES: Final = {**dict.fromkeys(_TOKENS, 10**6), items.REQUEST: 10**3}
"""Units per displayed price, for a readable number; hours are priced singly."""


@dataclass(frozen=True, slots=True)
class Span:
    """The visible part of a book's term."""

    holding: Holding
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Lane:
    """All terms of one tenant, or of everyone (""), including those outside of the drawing."""

    whose: str
    spans: tuple[Span, ...]
    holdings: tuple[Holding, ...]


def lanes(holdings: Iterable[Holding], *, day: dt.date) -> list[Lane]:
    """Group `holdings` by tenant, in their order."""
    by_whose: dict[str, list[Holding]] = {}
    for holding in holdings:
        by_whose.setdefault(holding.term.tenant, []).append(holding)
    return [
        Lane(whose, tuple(span for item in found if (span := _span(item, day)) is not None), tuple(found))
        for whose, found in by_whose.items()
    ]


def _span(holding: Holding, day: dt.date) -> Span | None:
    # Ordinals, because days of years 1 and 9999 have no neighbours.
    first = day.toordinal() - _YEAR
    starts = max(holding.term.starts.toordinal(), first)
    last = first + 2 * _YEAR
    ends = last if holding.term.ends is None else min(holding.term.ends.toordinal() + 1, last)
    if ends <= starts:
        return None
    scale = WIDTH / (2 * _YEAR)
    return Span(holding, round((starts - first) * scale, 2), round((ends - starts) * scale, 2))


def readable(prices: Iterable[MeterPrice]) -> list[tuple[MeterPrice, int]]:
    """Return each price with its nano-units for a million tokens, a thousand requests or one hour."""
    return [(price, price.nano * _SCALES.get(price.item, 1)) for price in prices]

"""Bars of small charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WIDTH: Final = 240
HEIGHT: Final = 40
_GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a chart of `WIDTH` x `HEIGHT`, with its title. `unpriced`: its true height is unknown."""

    x: float
    y: float
    width: float
    height: float
    title: str
    look: str = ""
    """CSS class of its colour, if the chart has two."""
    unpriced: bool = False


def bars_drawn(values: list[float], titles: list[str], *, most: float, look: str = "") -> list[Bar]:
    """Return a bar for each value, scaled so that `most` has full height."""
    step, bars = WIDTH / max(1, len(values)), []
    for at, (value, title) in enumerate(zip(values, titles, strict=True)):
        # A minimum height keeps small values visible.
        height = max(1.5, value / most * HEIGHT) if value else 0.0
        bars.append(
            Bar(
                round(at * step, 2),
                round(HEIGHT - height, 2),
                round(max(1.0, step - _GAP), 2),
                round(height, 2),
                title,
                look,
            )
        )
    return bars

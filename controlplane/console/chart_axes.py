"""Axes of charts that the server draws: their size in the chart's own units, and round labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 200
"""In the chart's own units: the drawing scales with the page."""
LEFT: Final = 48
RIGHT: Final = 4
TOP: Final = 8
BOTTOM: Final = 22
"""Room for the labels around the drawing."""
_LABELS: Final = 7


def step(count: int) -> float:
    """Return the width of each of `count` slots."""
    return (WIDTH - LEFT - RIGHT) / count


def height(amount: float, top: int) -> float:
    """Return the height of an amount in a chart whose upper edge stands for `top`."""
    return (HEIGHT - TOP - BOTTOM) * amount / top if top else 0.0


def round_up(amount: int) -> int:
    """Round up to the next 1, 2 or 5 times a power of ten; 0 stays."""
    if amount <= 0:
        return 0
    unit = int("1".ljust(len(str(amount)), "0"))
    return next(times * unit for times in (1, 2, 5, 10) if times * unit >= amount)


def x_labels(texts: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """Return (x, text) of some slots, evenly spaced, up to the last one."""
    count = len(texts)
    every = -(-count // _LABELS)
    return tuple(
        (round(LEFT + (at + 0.5) * step(count), 1), texts[at])
        for at in range((count - 1) % every, count, every)
    )


def y_labels(top: int) -> tuple[tuple[float, int], ...]:
    """Return (y, amount) of the grid's lines: the bottom, the middle if it is whole, the top."""
    amounts = [0, *([top // 2] if top % 2 == 0 else []), *([top] if top else [])]
    return tuple((round(HEIGHT - BOTTOM - height(each, top), 1), each) for each in amounts)

"""Times several ways to do the same in turn, round by round, so that a busy machine is busy for all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch

ROUNDS: Final = 21
"""The median counts."""
SECONDS: Final = 0.002
"""A contender's turn; short, so that disturbances fall on single rounds."""
MOST_CALLS: Final = 200


def race(
    contenders: Mapping[str, Callable[[], object]], *, reset: Callable[[], object] | None = None
) -> dict[str, float]:
    """Microseconds per call of each contender, the median of `ROUNDS` turns.

    Args:
        reset: called before every turn, outside its time; for contenders that work in place.
    """
    calls: dict[str, int] = {}
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.inference_mode():
        for name, contender in contenders.items():
            contender()
            calls[name] = min(MOST_CALLS, max(1, round(SECONDS / _turn(contender, 3))))
        for _ in range(ROUNDS):
            for name, contender in contenders.items():
                if reset is not None:
                    reset()
                turns[name].append(_turn(contender, calls[name]) * 1e6)
    return {name: statistics.median(each) for name, each in turns.items()}


def _turn(contender: Callable[[], object], calls: int) -> float:
    """Seconds per call."""
    start = time.perf_counter()
    for _ in range(calls):
        contender()
    return (time.perf_counter() - start) / calls

"""Times alternatives in alternating rounds, so that background load affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch

ROUNDS: Final = 21
"""Number of turns per contender; the median counts."""
SECONDS: Final = 0.002
"""Length of a contender's turn; short, so that disturbances affect single rounds."""
MOST_CALLS: Final = 200


def race(
    contenders: Mapping[str, Callable[[], object]], *, reset: Callable[[], object] | None = None
) -> dict[str, float]:
    """Return microseconds per call of each contender, the median of `ROUNDS` turns.

    Args:
        reset: called before every turn, outside its time; for contenders that work in place.
    """
    calls: dict[str, int] = {}
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.inference_mode():
        for name, contender in contenders.items():
            contender()
            calls[name] = min(MOST_CALLS, max(1, round(SECONDS / _seconds_per_call(contender, 3))))
        for _ in range(ROUNDS):
            for name, contender in contenders.items():
                if reset is not None:
                    reset()
                turns[name].append(_seconds_per_call(contender, calls[name]) * 1e6)
    return {name: statistics.median(each) for name, each in turns.items()}


def _seconds_per_call(contender: Callable[[], object], calls: int) -> float:
    """Return the seconds per call."""
    start = time.perf_counter()
    for _ in range(calls):
        contender()
    return (time.perf_counter() - start) / calls

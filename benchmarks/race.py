"""Times alternatives in alternating rounds, so that background load affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch

from benchmarks.figure import Figure, compared

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


def race_figures(
    benchmark: str,
    metric: str,
    contenders: Mapping[str, Callable[[], object]],
    *,
    goals: Mapping[str, float | None] | None = None,
    note: str = "",
    reset: Callable[[], object] | None = None,
) -> Iterator[Figure]:
    """Race the contenders, and yield the microseconds of `ours` beside each other's."""
    times = race(contenders, reset=reset)
    mine = times.pop("ours")
    for other, theirs in times.items():
        yield compared(
            benchmark,
            f"{metric}_vs_{other}",
            mine,
            "us",
            baseline=theirs,
            goal=(goals or {}).get(other),
            less_is_better=True,
            note=note,
        )


def long_race(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int, seconds: float
) -> dict[str, float]:
    """Return seconds per call of contenders that take long, the median of at most `rounds` calls.

    A contender that has taken `seconds` in three calls or more is not called again. The first call is not
    counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, contender in contenders.items():
            if len(taken[name]) <= 3 or sum(taken[name]) <= seconds:
                taken[name].append(_seconds_per_call(contender, 1))
    return {name: statistics.median(each[1:]) for name, each in taken.items()}


def _seconds_per_call(contender: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        contender()
    return (time.perf_counter() - start) / calls

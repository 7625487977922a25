"""Rounds in which all arms do the same work one after another, in a random order per round."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from optimizer.measurement.arm_process import ArmProcess
from optimizer.measurement.comparison_order import Level
from optimizer.measurement.streams import Stream, exchange
from optimizer.measurement.workload import Workload

JUDGED: Final = ("ttft_p50", "itl_p50", "tokens_per_s")
"""Figures of a round that are compared. Document 004's throughput is concurrency / p50 ITL, so it shares
ITL's verdict.
"""
PERCENTILES: Final = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One arm's part of a round at one level; in seconds."""

    streams: Sequence[Stream]
    seconds: float

    @property
    def figures(self) -> dict[str, float]:
        """The `JUDGED` figures, each above 0 unless it could not be measured."""
        return {
            "ttft_p50": percentile([stream.ttft for stream in self.streams], 50),
            "itl_p50": percentile([gap for stream in self.streams for gap in stream.itl], 50),
            "tokens_per_s": sum(stream.tokens for stream in self.streams) / self.seconds,
        }


@dataclass(slots=True)
class Rounds:
    """The measurements: one run per round by (arm, level), rounds in the same order."""

    arms: Sequence[str]
    runs: dict[tuple[str, Level], list[ArmRun]] = field(default_factory=dict)

    def log_ratios(self, arm: str, levels: Sequence[Level]) -> dict[str, list[float]]:
        """Return log(arm / original) of each round, by figure and level.

        A figure that any round of either arm lacks (no second token, so no ITL) is omitted.
        """
        found: dict[str, list[float]] = {}
        for level in levels:
            ours = [run.figures for run in self.runs[arm, level]]
            theirs = [run.figures for run in self.runs[self.arms[0], level]]
            for name in JUDGED:
                pairs = [(mine[name], other[name]) for mine, other in zip(ours, theirs, strict=True)]
                if all(mine > 0 and other > 0 for mine, other in pairs):
                    found[figure_name(name, level)] = [math.log(mine / other) for mine, other in pairs]
        return found


def figure_name(figure: str, level: Level) -> str:
    return f"{figure} at {level.name}"


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the interpolated percentile; 0.0 without values."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def percentiles(values: Sequence[float], scale: float = 1.0) -> Mapping[str, float]:
    return {f"p{percent}": percentile(values, percent) * scale for percent in PERCENTILES}


def measure(
    arms: Sequence[ArmProcess],
    workload: Workload,
    *,
    levels: Sequence[Level],
    rounds: int,
    warm_up: int,
    seed: int,
    told: Callable[[float, str], None],
) -> Rounds:
    """Run `warm_up` rounds, which are dropped, and `rounds` that count.

    Args:
        told: called with the completed fraction, and a description.

    Raises:
        JobError: an arm ended or refused.
    """
    measured = Rounds([arm.arm.name for arm in arms])
    for number in range(warm_up + rounds):
        for level, arm, run in _round(arms, workload, number, levels, seed):
            if number >= warm_up:
                measured.runs.setdefault((arm.arm.name, level), []).append(run)
        kind = "warm-up" if number < warm_up else "round"
        told((number + 1) / (warm_up + rounds), f"{kind} {number + 1} of {warm_up + rounds}")
    return measured


def _round(
    arms: Sequence[ArmProcess], workload: Workload, number: int, levels: Sequence[Level], seed: int
) -> Iterator[tuple[Level, ArmProcess, ArmRun]]:
    """Run one round. All levels share the order of arms, so that the test can swap a round's labels as a
    whole.
    """
    order = list(arms)
    random.Random(f"order {seed} {number}").shuffle(order)  # noqa: S311
    for level in levels:
        asks = workload.asks(number, level)
        for arm in order:
            arm.awake()
            try:
                streams, seconds = exchange(arm, asks, streams=level.streams)
            finally:
                arm.asleep()
            yield level, arm, ArmRun(streams, seconds)

"""One measured figure, as a line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement beside its baseline, which was run in the same call.

    Attributes:
        baseline: what it is compared with, or None.
        ratio: value over the baseline's value.
        goal: ratio to reach (at least, or at most where less is better), or None.
        met: whether the goal is reached; None without a goal.
    """

    benchmark: str
    metric: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    goal: float | None = None
    met: bool | None = None
    note: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def compared(
    benchmark: str,
    metric: str,
    value: float,
    unit: str,
    *,
    baseline: float,
    goal: float | None = None,
    less_is_better: bool = False,
    note: str = "",
) -> Figure:
    """A figure with its ratio to `baseline` and whether that reaches `goal`."""
    ratio = round(value / baseline, 3) if baseline else None
    met: bool | None = None
    if goal is not None and ratio is not None:
        met = ratio <= goal if less_is_better else ratio >= goal
    return Figure(benchmark, metric, round(value, 3), unit, round(baseline, 3), ratio, goal, met, note)

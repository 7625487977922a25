"""The state of an alarm from the values of its last periods, in the terms of Amazon CloudWatch.

With N evaluation periods and M datapoints to alarm:

1. A period without a value is missing. With `breaching` it counts as breaching, with `notBreaching` as not.
2. M breaching periods of the last N make ALARM.
3. If all N are missing, `missing` makes INSUFFICIENT_DATA and `ignore` keeps the state.
4. If the missing periods could complete M breaching ones, the state is kept. CloudWatch decides here by the
   periods before the last N, which we do not read.
5. Otherwise the state is OK.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final

from controlplane.monitoring.models import SIGNS, Comparison, Metric, MissingData, State

_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    Comparison.GREATER: operator.gt,
    Comparison.GREATER_OR_EQUAL: operator.ge,
    Comparison.LESS: operator.lt,
    Comparison.LESS_OR_EQUAL: operator.le,
}
_UNITS: Final = {Metric.ERROR_RATE: " %", Metric.TTFT_P95: " ms", Metric.ITL_P95: " ms"}


def breaches(value: float, comparison: str, threshold: float) -> bool:
    """Return True if a value breaches the threshold."""
    return _COMPARE[comparison](value, threshold)


def next_state(
    values: Sequence[float | None],
    *,
    comparison: str,
    threshold: float,
    datapoints_to_alarm: int,
    treat_missing_data: str,
    state: str,
) -> State:
    """Return the state after the evaluation of N values, oldest first; None for a missing value."""
    breaching = sum(value is not None and breaches(value, comparison, threshold) for value in values)
    missing = sum(value is None for value in values)
    if treat_missing_data == MissingData.BREACHING:
        breaching, missing = breaching + missing, 0
    elif treat_missing_data == MissingData.NOT_BREACHING:
        missing = 0
    if breaching >= datapoints_to_alarm:
        return State.ALARM
    if missing == len(values):
        return State(state) if treat_missing_data == MissingData.IGNORE else State.INSUFFICIENT_DATA
    return State(state) if breaching + missing >= datapoints_to_alarm else State.OK


def reason_text(values: Sequence[float | None], *, metric: str, comparison: str, threshold: float) -> str:
    """Return the state's reason as a sentence with the values."""
    known = [value for value in values if value is not None]
    unit = _UNITS.get(Metric(metric), "")
    if not known:
        return f"No values in the last {len(values)} periods."
    shown = ", ".join("none" if value is None else f"{value:.6g}{unit}" for value in values[-5:])
    if metric == Metric.NO_REQUESTS:
        return f"Requests of the last periods: {shown}."
    count = sum(breaches(value, comparison, threshold) for value in known)
    rule = f"{SIGNS[Comparison(comparison)]} {threshold:g}{unit}"
    return f"{count} of the last {len(values)} periods are {rule}; the latest values: {shown}."

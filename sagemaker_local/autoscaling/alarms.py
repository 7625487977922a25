"""Evaluates CloudWatch's metric alarms by the clock, and runs the policies of those in ALARM.

moto stores alarms and metrics but evaluates nothing.
"""

from __future__ import annotations

import datetime
import logging
import operator
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from sagemaker_local.aws_errors import ApiError
from sagemaker_local.clock import Clock
from sagemaker_local.resources.alarms import Call

log = logging.getLogger(__name__)
Action = Callable[[str, str, float, float], Awaitable[None]]
"""ARN of an action, name of the alarm, the metric's latest value, the alarm's threshold."""
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "GreaterThanOrEqualToThreshold": operator.ge,
    "GreaterThanThreshold": operator.gt,
    "LessThanThreshold": operator.lt,
    "LessThanOrEqualToThreshold": operator.le,
}
_MOST_POINTS: Final = 1400
"""Most data points of a request; GetMetricStatistics returns 1,440 at most."""


class Alarms:
    """Evaluates alarms with a statistic; composite alarms, expressions and percentiles are ignored."""

    def __init__(self, clock: Clock, cloudwatch: Call, action: Action) -> None:
        self._clock, self._cloudwatch, self._action = clock, cloudwatch, action

    async def evaluate(self) -> None:
        given: dict[str, Any] = {}
        while True:
            answer = await self._cloudwatch("DescribeAlarms", given)
            for alarm in answer.get("MetricAlarms", []):
                if alarm.get("MetricName") and alarm.get("Statistic"):
                    await self._evaluate(alarm)
            if "NextToken" not in answer:
                return
            given = {"NextToken": answer["NextToken"]}

    async def _evaluate(self, alarm: dict[str, Any]) -> None:
        values = await self._values(alarm)
        state, reason = alarm.get("StateValue", "INSUFFICIENT_DATA"), ""
        # Without any data the state stays, since it may have been set by hand.
        if any(value is not None for value in values):
            new = _state(alarm, values)
            reason = f"Threshold Crossed or not: {values} against {alarm['Threshold']}"
            if new != state:
                change = {"AlarmName": alarm["AlarmName"], "StateValue": new, "StateReason": reason[:1000]}
                await self._cloudwatch("SetAlarmState", change)
            state = new
        if state != "ALARM" or not alarm.get("ActionsEnabled", True):
            return
        latest = next((value for value in values if value is not None), alarm["Threshold"])
        for arn in alarm.get("AlarmActions", []):
            try:
                await self._action(arn, alarm["AlarmName"], latest, alarm["Threshold"])
            except ApiError:
                log.exception("alarm %s: its action %s failed", alarm["AlarmName"], arn)

    async def _values(self, alarm: dict[str, Any]) -> list[float | None]:
        """Return the statistic of each evaluation period, the latest first; None if there is no data."""
        period, count, now = alarm["Period"], alarm["EvaluationPeriods"], self._clock.now()
        resolution = 1 if period * count <= _MOST_POINTS else period
        span = {
            "StartTime": datetime.datetime.fromtimestamp(now - period * count, datetime.UTC),
            "EndTime": datetime.datetime.fromtimestamp(now + 1, datetime.UTC),
            "Period": resolution,
            "Statistics": ["Sum", "SampleCount", "Minimum", "Maximum"],
        }
        metric = {name: alarm[name] for name in ("Namespace", "MetricName", "Dimensions") if alarm.get(name)}
        answer = await self._cloudwatch("GetMetricStatistics", {**metric, **span})
        periods: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        for point in answer.get("Datapoints", []):
            # The half second puts a point on the border into the earlier period, in spite of rounding.
            place = int((now - point["Timestamp"].timestamp() + 0.5) // period)
            if 0 <= place < count:
                periods[place].append(point)
        return [_statistic(alarm["Statistic"], points) if points else None for points in periods]


def _state(alarm: dict[str, Any], values: list[float | None]) -> str:
    """Return CloudWatch's state: ALARM if enough periods breach; the alarm says how missing ones count."""
    breaches = _COMPARISONS[alarm["ComparisonOperator"]]
    missing = alarm.get("TreatMissingData", "missing")
    found = [
        missing == "breaching" if value is None else breaches(value, alarm["Threshold"]) for value in values
    ]
    if missing in ("missing", "ignore"):
        found = [breach for breach, value in zip(found, values, strict=True) if value is not None]
    return "ALARM" if sum(found) >= alarm.get("DatapointsToAlarm", len(values)) else "OK"


def _statistic(kind: str, points: list[dict[str, Any]]) -> float:
    total, count = sum(point["Sum"] for point in points), sum(point["SampleCount"] for point in points)
    match kind:
        case "Sum":
            return float(total)
        case "SampleCount":
            return float(count)
        case "Minimum":
            return float(min(point["Minimum"] for point in points))
        case "Maximum":
            return float(max(point["Maximum"] for point in points))
    return float(total / count)

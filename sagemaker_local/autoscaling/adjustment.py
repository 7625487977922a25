"""The arithmetic of scaling policies, as in Application Auto Scaling."""

from __future__ import annotations

import math
from typing import Any

from sagemaker_local.aws_errors import ValidationException


def check(config: dict[str, Any]) -> None:
    """Check a step policy. Raises ValidationException without steps, or if their intervals overlap."""
    steps = config.get("StepAdjustments", [])
    if not steps or "AdjustmentType" not in config:
        raise ValidationException("A step scaling policy needs AdjustmentType and StepAdjustments.")
    bounds = sorted(_bounds(item) for item in steps)
    for (low, high), after in zip(bounds, [*bounds[1:], (math.inf, math.inf)], strict=True):
        if low >= high or high > after[0]:
            raise ValidationException("Step adjustment intervals must not be empty or overlap.")


def step(config: dict[str, Any], now: int, breach: float) -> int:
    """Return the new capacity for `breach`, the metric minus the alarm's threshold."""
    for item in config["StepAdjustments"]:
        low, high = _bounds(item)
        # Above the threshold the lower bound belongs to the interval, below it the upper bound.
        inside = low <= breach < high if breach >= 0 else low < breach <= high
        if inside:
            return _adjusted(config, now, item["ScalingAdjustment"])
    return now


def track(target: float, now: int, value: float) -> int:
    """Return the capacity that brings a metric per copy from `value` to `target`."""
    return math.ceil(now * value / target) if target > 0 else now


def _adjusted(config: dict[str, Any], now: int, by: int) -> int:
    match config["AdjustmentType"]:
        case "ExactCapacity":
            return by
        case "PercentChangeInCapacity":
            change = now * by / 100
            size = max(math.floor(abs(change)), 1 if change else 0, config.get("MinAdjustmentMagnitude", 0))
            return now + int(math.copysign(size, by))
    return now + by


def _bounds(item: dict[str, Any]) -> tuple[float, float]:
    low, high = item.get("MetricIntervalLowerBound"), item.get("MetricIntervalUpperBound")
    return -math.inf if low is None else low, math.inf if high is None else high

"""Policy of a rollout: its pace and the limits that roll it back, validated for the kind of target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from controlplane.deployments.models import Target
from controlplane.errors import InvalidInputError

_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "batch_copies": (1, 1000),
    "rollback_batch_copies": (1, 1000),
    "wait_seconds": (0, 3600),
    "max_seconds": (600, 28_800),
    "max_error_increase": (0.001, 0.5),
    "max_latency_ratio": (1.1, 100.0),
    "max_model_errors": (1, 1e9),
    "max_model_latency_ms": (1, 1e7),
}
_OPTIONAL: Final = frozenset(
    {
        "rollback_batch_copies",
        "max_error_increase",
        "max_latency_ratio",
        "max_model_errors",
        "max_model_latency_ms",
    }
)
_OF_SAGEMAKER: Final = ("alarms", "rollback_batch_copies", "max_model_errors", "max_model_latency_ms")
_ALARM: Final = re.compile(r"(?!\s*$)[^\x00-\x1f]{1,255}")
MOST_SHARES: Final = 10
SHARES: Final = (5, 25, 50)
"""Default shares of a canary."""
MOST_ALARMS: Final = 7
"""SageMaker takes ten alarms; up to three are ours."""


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """Pace of a rollout, and the limits that roll it back.

    Attributes:
        batch_copies: copies replaced at a time; for a canary, the number of copies that it is tried with.
        shares: canary: growing percentages of callers for the new copies, one per step.
        rollback_batch_copies: sagemaker: copies replaced at a time while rolling back; None for all at once.
        wait_seconds: time from a step's copies being ready until the next step; alarms are watched meanwhile.
        max_seconds: longest duration of the rollout.
        max_error_increase: allowed increase in the share of failed requests over the other copies; None: not
            judged.
        max_latency_ratio: allowed 95th percentile of time to first token, relative to the other copies; None:
            not judged.
        alarms: sagemaker: names of the operator's CloudWatch alarms.
        max_model_errors: sagemaker: errors per minute, by CloudWatch's InvocationModelErrors.
        max_model_latency_ms: sagemaker: mean latency over a minute, by CloudWatch's ModelLatency.
    """

    batch_copies: int = 1
    shares: tuple[int, ...] = ()
    rollback_batch_copies: int | None = None
    wait_seconds: int = 60
    max_seconds: int = 3600
    max_error_increase: float | None = 0.02
    max_latency_ratio: float | None = None
    alarms: tuple[str, ...] = ()
    max_model_errors: float | None = None
    max_model_latency_ms: float | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, kind: str) -> Self:
        """Return a validated policy.

        Raises:
            InvalidInputError: a name is unknown, or a value is out of bounds or not valid for this target.
        """
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise _wrong(
                "policy", f"policy has no field {unknown[0]}; existing fields: {', '.join(sorted(known))}"
            )
        for name, (least, most) in _BOUNDS.items():
            value = values.get(name)
            if name not in values or (value is None and name in _OPTIONAL):
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not least <= value <= most:  # type: ignore[operator]
                raise _wrong(name, f"{name} must be a number from {least:g} to {most:g}, got {value!r}")
        lists = {name: tuple(values.get(name) or ()) for name in ("alarms", "shares")}
        policy = cls(**{**values, **lists})
        policy._check_alarms()
        policy._check_shares()
        if kind != Target.Kind.SAGEMAKER and (given := [name for name in _OF_SAGEMAKER if values.get(name)]):
            raise _wrong(given[0], f"{given[0]} is valid only for targets of kind sagemaker")
        return policy

    @property
    def is_judged(self) -> bool:
        """True if metered usage can roll the rollout back."""
        return self.max_error_increase is not None or self.max_latency_ratio is not None

    @property
    def thresholds(self) -> dict[str, float]:
        """Thresholds of our own CloudWatch alarms, by metric."""
        found = {"errors": self.max_model_errors, "latency": self.max_model_latency_ms}
        return {name: float(value) for name, value in found.items() if value is not None}

    def deployment_config(self) -> dict[str, Any]:
        """Return SageMaker's DeploymentConfig with the operator's alarms only."""
        rolling: dict[str, Any] = {
            "MaximumBatchSize": _copies(self.batch_copies),
            "WaitIntervalInSeconds": int(self.wait_seconds),
            "MaximumExecutionTimeoutInSeconds": int(self.max_seconds),
        }
        if self.rollback_batch_copies is not None:
            rolling["RollbackMaximumBatchSize"] = _copies(self.rollback_batch_copies)
        alarms = [{"AlarmName": name} for name in self.alarms]
        return {"RollingUpdatePolicy": rolling, "AutoRollbackConfiguration": {"Alarms": alarms}}

    def to_dict(self) -> dict[str, Any]:
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()
        }

    def _check_shares(self) -> None:
        given: tuple[Any, ...] = self.shares
        whole = all(isinstance(item, int) and not isinstance(item, bool) and 0 < item < 100 for item in given)
        if not whole or len(given) > MOST_SHARES or list(given) != sorted(set(given)):
            raise _wrong(
                "shares", f"shares must be at most {MOST_SHARES} increasing percentages from 1 to 99"
            )

    def _check_alarms(self) -> None:
        if len(self.alarms) > MOST_ALARMS or len(set(self.alarms)) != len(self.alarms):
            raise _wrong("alarms", f"alarms must be at most {MOST_ALARMS} different names")
        names: tuple[Any, ...] = self.alarms
        for name in names:
            if not isinstance(name, str) or _ALARM.fullmatch(name) is None:
                raise _wrong("alarms", f"an alarm name must have 1-255 characters, got {name!r}")


def _copies(count: int) -> dict[str, Any]:
    return {"Type": "COPY_COUNT", "Value": int(count)}


def _wrong(field: str, text: str) -> InvalidInputError:
    return InvalidInputError(text, field=f"policy.{field}" if field != "policy" else field)

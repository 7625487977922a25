"""CloudWatch alarms that make SageMaker roll an update back: the operator's, and ours.

`verdict` watches no metric of AWS's. We set it to ALARM when metered usage shows that the new copies are
worse, or when an operator aborts. A component's update cannot be stopped otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from controlplane.deployments.provisioners.base import ProvisioningError, RolloutStage, Step
from controlplane.deployments.provisioners.sagemaker.names import VARIANT, Names
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount

_VERDICT: Final = "verdict"
_MINUTE: Final = 60


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    statistic: str
    unit: float = 1.0
    """Factor from the threshold's unit to the metric's unit."""


_METRICS: Final[Mapping[str, _Metric]] = {
    "errors": _Metric("InvocationModelErrors", "Sum"),
    "latency": _Metric("ModelLatency", "Average", 1000.0),
}


class Alarms:
    """Rollout alarms of one deployment: of its base component, or of its endpoint's `variant`."""

    def __init__(self, account: ServicesAccount, names: Names, *, variant: bool = False) -> None:
        self._account, self._names = account, names
        self._dimensions = {"InferenceComponentName": names.base}
        if variant:
            self._dimensions = {"EndpointName": names.endpoint, "VariantName": VARIANT}

    @property
    def verdict(self) -> str:
        """Name of the alarm that we trigger ourselves."""
        return f"{self._names.alarms}{_VERDICT}"

    def read(self) -> dict[str, str]:
        """Return our existing alarms with their states."""
        return self._states(AlarmNamePrefix=self._names.alarms)

    def config(self, stage: RolloutStage) -> dict[str, Any]:
        """Return the update's DeploymentConfig; a rollback has no alarms."""
        if stage.rolling_back:
            return {"RollingUpdatePolicy": stage.config["RollingUpdatePolicy"]}
        names = [self.verdict, *(f"{self._names.alarms}{what}" for what in sorted(stage.thresholds))]
        ours = [{"AlarmName": name} for name in names]
        alarms = [*stage.config["AutoRollbackConfiguration"]["Alarms"], *ours]
        return {**stage.config, "AutoRollbackConfiguration": {"Alarms": alarms}}

    def prepare(self, stage: RolloutStage, there: Mapping[str, str]) -> Iterator[Step]:
        """Prepare an update: make sure that all of its alarms exist and none is in ALARM.

        Raises:
            ProvisioningError: one of the operator's is missing, or (transient) in ALARM.
        """
        self._check([item["AlarmName"] for item in stage.config["AutoRollbackConfiguration"]["Alarms"]])
        if self.verdict not in there:
            yield self._put(
                self.verdict,
                {
                    "Namespace": "Graftwork",
                    "MetricName": "RolloutVerdict",
                    "Statistic": "Maximum",
                    "Dimensions": [{"Name": "Deployment", "Value": self._names.base}],
                    "Threshold": 0.5,
                    # The metric has no data, so the alarm keeps the state that we set.
                    "TreatMissingData": "ignore",
                },
            )
        elif there[self.verdict] == "ALARM":
            yield self._set("OK", "another rollout begins")
        for what, threshold in sorted(stage.thresholds.items()):
            metric = _METRICS[what]
            yield self._put(
                f"{self._names.alarms}{what}",
                {
                    "Namespace": "AWS/SageMaker",
                    "MetricName": metric.name,
                    "Statistic": metric.statistic,
                    "Dimensions": [
                        {"Name": name, "Value": value} for name, value in self._dimensions.items()
                    ],
                    "Threshold": threshold * metric.unit,
                    "TreatMissingData": "notBreaching",
                },
            )

    def ring(self, there: Mapping[str, str]) -> Iterator[Step]:
        """Make SageMaker roll back the update in progress."""
        if there.get(self.verdict, "ALARM") != "ALARM":
            yield self._set("ALARM", "the rollout is rolled back")

    def remove(self, there: Mapping[str, str], cause: str) -> Iterator[Step]:
        """Delete all of our alarms."""
        if there:
            self._call("delete_alarms", self._names.alarms, AlarmNames=sorted(there))
            yield Step("delete_alarms", self._names.alarms, cause)

    def _check(self, names: list[str]) -> None:
        states = self._states(AlarmNames=names) if names else {}
        if missing := sorted(set(names) - set(states)):
            raise ProvisioningError(
                f"alarm {missing[0]} does not exist in the target's account and region: create it, or"
                " name another",
                code="no_alarm",
            )
        if ringing := sorted(name for name, state in states.items() if state == "ALARM"):
            raise ProvisioningError(
                f"alarm {ringing[0]} has gone off already, so SageMaker would take the update back at once: "
                "the rollout waits until it is OK",
                transient=True,
                wait=15.0,
                code="alarm",
            )

    def _states(self, **which: Any) -> dict[str, str]:
        answer = self._call(
            "describe_alarms",
            self._names.alarms,
            AlarmTypes=["MetricAlarm", "CompositeAlarm"],
            MaxRecords=100,
            **which,
        )
        found = [*answer.get("MetricAlarms", ()), *answer.get("CompositeAlarms", ())]
        return {str(item["AlarmName"]): str(item["StateValue"]) for item in found}

    def _call(self, operation: str, about: str, **arguments: Any) -> dict[str, Any]:
        return self._account.ask("cloudwatch", operation, about, **arguments)

    def _put(self, name: str, metric: Mapping[str, Any]) -> Step:
        self._call(
            "put_metric_alarm",
            name,
            AlarmName=name,
            Period=_MINUTE,
            EvaluationPeriods=1,
            ComparisonOperator="GreaterThanThreshold",
            ActionsEnabled=False,
            AlarmDescription="Created by Graftwork for a rollout; removed with it.",
            **metric,
        )
        return Step("put_metric_alarm", name, f"it takes the update back when {metric['MetricName']} is high")

    def _set(self, state: str, reason: str) -> Step:
        self._call(
            "set_alarm_state", self.verdict, AlarmName=self.verdict, StateValue=state, StateReason=reason
        )
        return Step("set_alarm_state", self.verdict, f"{state}: {reason}")

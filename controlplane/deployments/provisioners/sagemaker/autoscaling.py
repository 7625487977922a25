"""Register a scaling policy at Application Auto Scaling: target, policies, alarm and schedule.

All resources are named after their purpose. Each observation compares them with the desired state: missing
ones are created, differing ones replaced, unwanted ones deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from django.utils import timezone

from controlplane.deployments.models import Deployment
from controlplane.deployments.provisioners.base import Desired, ProvisioningError, ScalingActivity, Step
from controlplane.deployments.provisioners.sagemaker.account import aws_answers
from controlplane.deployments.provisioners.sagemaker.errors import is_absent
from controlplane.deployments.provisioners.sagemaker.names import VARIANT, Names
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from controlplane.deployments.scaling.policy import Metric, ScalingPolicy, ScheduledBounds

_SCALING: Final = "application-autoscaling"
_ACTIVITIES: Final = 50
_SET: Final = re.compile(r"Setting desired (?:copy|instance) count to ([0-9]+)")
ALARM_SECONDS: Final = 30.0
"""Three 10 s periods of target tracking's alarm, or one 30 s period of the scale-from-zero alarm."""
_METRICS: Final = {
    Metric.CONCURRENCY: "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution",
    Metric.INVOCATIONS: "SageMakerInferenceComponentInvocationsPerCopy",
}
_VARIANT_METRICS: Final = {
    Metric.CONCURRENCY: "SageMakerVariantConcurrentRequestsPerModelHighResolution",
    Metric.INVOCATIONS: "SageMakerVariantInvocationsPerInstance",
}
"""Metrics of an endpoint without components, whose copies are instances."""
_OURS: Final = "graftwork-"
"""Prefix of our policies and scheduled actions; others on the same component are not ours."""
TRACK, FROM_ZERO = f"{_OURS}track", f"{_OURS}from-zero"


@dataclass(frozen=True, slots=True)
class RegisteredScaling:
    """Registered autoscaling resources; policies and scheduled actions by name, as Describe returns them.

    `refused`: why they could not be read, or "". If set, nothing else is known.
    """

    target: Mapping[str, Any] | None = None
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scheduled: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    alarm: Mapping[str, Any] | None = None

    scaled: tuple[ScalingActivity, ...] = ()
    refused: str = ""

    @property
    def any(self) -> bool:
        """True if a resource is registered, or may be."""
        return self.target is not None or self.alarm is not None or bool(self.refused)

    @property
    def is_shared(self) -> bool:
        """True if another tool uses the same scalable target."""
        return any(not name.startswith(_OURS) for name in (*self.policies, *self.scheduled))


NOTHING_REGISTERED: Final = RegisteredScaling()


class Autoscaling:
    """Autoscaling of one deployment's base component or variant. Makes no call if it never had a policy."""

    def __init__(self, account: ServicesAccount, names: Names, desired: Desired) -> None:
        self._account, self._desired, self._policy = account, desired, desired.scaling
        self._refused = ""
        self._component = names.base
        self._alarm = f"{names.base}-no-capacity"
        self._metrics: Mapping[Metric, str] = _METRICS
        resource, dimension = f"inference-component/{names.base}", "inference-component:DesiredCopyCount"
        if desired.hosting == Deployment.Hosting.ENDPOINT:
            self._metrics = _VARIANT_METRICS
            resource, dimension = (
                f"endpoint/{names.endpoint}/variant/{VARIANT}",
                "variant:DesiredInstanceCount",
            )
        self._resource = {
            "ServiceNamespace": "sagemaker",
            "ResourceId": resource,
            "ScalableDimension": f"sagemaker:{dimension}",
        }

    def read(self) -> RegisteredScaling:
        """Return the registered resources. A refusal is returned, not raised, so that other parts go on."""
        if not self._desired.scaled:
            return NOTHING_REGISTERED
        try:
            return replace(self._read_registered(), refused=self._refused)
        except ProvisioningError as error:
            return RegisteredScaling(refused=str(error))

    def _read_registered(self) -> RegisteredScaling:
        targets = self._list("describe_scalable_targets", "ScalableTargets", ResourceIds=[self._id])
        alarms = self._account.ask("cloudwatch", "describe_alarms", self._alarm, AlarmNames=[self._alarm])[
            "MetricAlarms"
        ]
        if not targets:
            return RegisteredScaling(alarm=next(iter(alarms), None))
        one = {key: self._resource[key] for key in ("ResourceId", "ScalableDimension")}
        policies = self._list("describe_scaling_policies", "ScalingPolicies", **one)
        scheduled = self._list("describe_scheduled_actions", "ScheduledActions", **one)
        return RegisteredScaling(
            targets[0],
            {item["PolicyName"]: item for item in policies},
            {item["ScheduledActionName"]: item for item in scheduled},
            next(iter(alarms), None),
            self._scale_ups(),
        )

    def _scale_ups(self) -> tuple[ScalingActivity, ...]:
        """Return the latest scale-ups, oldest first; one page, since observations are frequent."""
        about = {key: self._resource[key] for key in ("ServiceNamespace", "ResourceId", "ScalableDimension")}
        activities = self._account.ask(
            _SCALING, "describe_scaling_activities", self._id, MaxResults=_ACTIVITIES, **about
        )["ScalingActivities"]
        found = list[ScalingActivity]()
        before: int | None = None
        for item in sorted(activities, key=lambda item: item["StartTime"]):
            match = _SET.search(item["Description"])
            if match is None or item["StatusCode"] not in ("InProgress", "Pending", "Successful"):
                continue
            after, cause = int(match[1]), str(item.get("Cause", ""))
            if self._alarm in cause:
                before = 0
            # The count before the oldest activity is unknown, unless it was zero.
            if before is not None and after > before:
                ended = item.get("EndTime") if item["StatusCode"] == "Successful" else None
                detect = ALARM_SECONDS if "alarm" in cause else 0.0
                event = str(item["ActivityId"])[:64]
                found.append(ScalingActivity(event, before, after, cause, detect, item["StartTime"], ended))
            before = after
        return tuple(found)

    def complete(self, seen: RegisteredScaling) -> bool:
        """Return True if exactly the desired resources are registered."""
        return not seen.refused and next(self._steps(seen, act=False), None) is None

    def apply(self, seen: RegisteredScaling) -> Iterator[Step]:
        """Register the desired resources. A refusal is kept for the next `look`, not raised."""
        if seen.refused:
            return
        try:
            yield from self._steps(seen, act=True)
        except ProvisioningError as error:
            self._refused = str(error)

    def remove(self, seen: RegisteredScaling, cause: str) -> Iterator[Step]:
        """Deregister the target, with all policies and the schedule on it, and delete our alarm.

        Raises:
            ProvisioningError: the resources could not be read, and would be left behind.
        """
        if seen.refused:
            raise ProvisioningError(seen.refused, transient=True)
        if seen.target is not None:
            self._delete_if_present("deregister_scalable_target")
            yield Step("deregister_scalable_target", self._id, cause)
        if seen.alarm is not None:
            self._account.ask("cloudwatch", "delete_alarms", self._alarm, AlarmNames=[self._alarm])
            yield Step("delete_alarms", self._alarm, cause)

    @property
    def _id(self) -> str:
        return self._resource["ResourceId"]

    def _steps(self, seen: RegisteredScaling, *, act: bool) -> Iterator[Step]:
        """Yield the steps that are necessary; with `act` each one is first carried out."""
        policy = self._policy
        if policy is None:
            yield from self._end(seen, act=act)
            return
        least, most = policy.bounds(timezone.now())
        bounds = {"MinCapacity": least, "MaxCapacity": most}
        if cause := _difference(bounds, seen.target):
            self._do(act, "register_scalable_target", **bounds)
            yield Step("register_scalable_target", self._id, cause)
        policies = {TRACK: tracking(policy, self._metrics)} | (
            {FROM_ZERO: from_zero(policy)} if policy.least == 0 else {}
        )
        for name, body in policies.items():
            if cause := _difference(body, seen.policies.get(name)):
                self._do(act, "put_scaling_policy", PolicyName=name, **body)
                yield Step("put_scaling_policy", name, cause)
        scheduled = {
            f"{_OURS}{item.name}": scheduled_action(item, policy.timezone) for item in policy.schedule
        }
        for name, body in scheduled.items():
            if cause := _difference(body, seen.scheduled.get(name)):
                self._do(act, "put_scheduled_action", ScheduledActionName=name, **body)
                yield Step("put_scheduled_action", name, cause)
        yield from self._surplus(seen, set(policies), set(scheduled), act=act)
        yield from self._alarms(seen, act=act)

    def _end(self, seen: RegisteredScaling, *, act: bool) -> Iterator[Step]:
        """Remove our resources if the policy was deleted; keep a target that another tool uses."""
        yield from self._surplus(seen, set(), set(), act=act)
        if seen.target is not None and not seen.is_shared:
            if act:
                self._delete_if_present("deregister_scalable_target")
            yield Step("deregister_scalable_target", self._id, "it has no scaling policy")
        yield from self._alarms(seen, act=act)

    def _surplus(
        self, seen: RegisteredScaling, policies: set[str], scheduled: set[str], *, act: bool
    ) -> Iterator[Step]:
        """Delete surplus resources with our prefix only: those of other tools stay."""
        for name in sorted({name for name in seen.policies if name.startswith(_OURS)} - policies):
            self._do(act, "delete_scaling_policy", PolicyName=name)
            yield Step("delete_scaling_policy", name, "the policy no longer includes it")
        for name in sorted({name for name in seen.scheduled if name.startswith(_OURS)} - scheduled):
            self._do(act, "delete_scheduled_action", ScheduledActionName=name)
            yield Step("delete_scheduled_action", name, "the policy no longer includes it")

    def _alarms(self, seen: RegisteredScaling, *, act: bool) -> Iterator[Step]:
        """Keep the alarm for scaling from zero: requests that found no copy trigger the step policy."""
        arn = str(seen.policies.get(FROM_ZERO, {}).get("PolicyARN", ""))
        if self._policy is None or self._policy.least > 0:
            if seen.alarm is not None:
                if act:
                    self._account.ask("cloudwatch", "delete_alarms", self._alarm, AlarmNames=[self._alarm])
                yield Step("delete_alarms", self._alarm, "the deployment does not scale from zero")
            return
        if not arn:
            # The step policy's ARN is known at the next observation, after it was created.
            return
        body = no_capacity_alarm(self._component, arn)
        if cause := _difference(body, seen.alarm):
            if act:
                self._account.ask(
                    "cloudwatch", "put_metric_alarm", self._alarm, AlarmName=self._alarm, **body
                )
            yield Step("put_metric_alarm", self._alarm, cause)

    def _do(self, act: bool, operation: str, **arguments: Any) -> None:
        if act:
            self._account.ask(_SCALING, operation, self._id, **self._resource, **arguments)

    def _delete_if_present(self, operation: str) -> None:
        try:
            self._do(True, operation)
        except ProvisioningError as error:
            if not is_absent(error.__cause__):
                raise

    def _list(self, operation: str, key: str, **arguments: Any) -> list[dict[str, Any]]:
        with aws_answers(operation, self._id):
            pages = self._account.client(_SCALING).get_paginator(operation)
            found = pages.paginate(ServiceNamespace="sagemaker", **arguments)
            return [item for page in found for item in page[key]]


def tracking(policy: ScalingPolicy, metrics: Mapping[Metric, str] = _METRICS) -> dict[str, Any]:
    """Return PutScalingPolicy's body for target tracking."""
    return {
        "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": {
            "TargetValue": policy.target,
            "PredefinedMetricSpecification": {"PredefinedMetricType": metrics[policy.metric]},
            "ScaleOutCooldown": policy.out_cooldown,
            "ScaleInCooldown": policy.in_cooldown,
            "DisableScaleIn": policy.protect,
        },
    }


def from_zero(policy: ScalingPolicy) -> dict[str, Any]:
    """Return PutScalingPolicy's body for the step from zero.

    The step adds copies: an exact count would remove copies that target tracking has added meanwhile.
    """
    return {
        "PolicyType": "StepScaling",
        "StepScalingPolicyConfiguration": {
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Maximum",
            "Cooldown": max(60, policy.out_cooldown),
            "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": policy.from_zero}],
        },
    }


def no_capacity_alarm(component: str, policy_arn: str) -> dict[str, Any]:
    """Return PutMetricAlarm's body: one request in half a minute that found no copy."""
    return {
        "AlarmActions": [policy_arn],
        "Namespace": "AWS/SageMaker",
        "MetricName": "NoCapacityInvocationFailures",
        "Dimensions": [{"Name": "InferenceComponentName", "Value": component}],
        "Statistic": "Maximum",
        "Period": 30,
        "EvaluationPeriods": 1,
        "DatapointsToAlarm": 1,
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "missing",
    }


def scheduled_action(item: ScheduledBounds, zone: str) -> dict[str, Any]:
    """Return PutScheduledAction's body."""
    hour, minute = map(int, item.at.split(":"))
    days = ",".join(day.upper() for day in item.days)
    return {
        "Schedule": f"cron({minute} {hour} ? * {days} *)",
        "Timezone": zone,
        "ScalableTargetAction": {"MinCapacity": item.min_copies, "MaxCapacity": item.max_copies},
    }


def _difference(wanted: Mapping[str, Any], registered: Mapping[str, Any] | None) -> str:
    """Return the first difference between the desired and the registered body; "" without one.

    Additional registered fields are ignored.
    """
    if registered is None:
        return "it does not exist"
    for name, value in wanted.items():
        has = registered.get(name)
        if isinstance(value, Mapping) and isinstance(has, Mapping):
            if found := _difference(value, has):
                return found
        elif has != value:
            return f"{name} is {has}, desired {value}"
    return ""

"""A scaling policy at Application Auto Scaling: a scalable target, its policies, alarm and schedule.

All of it is named after what it is for, and compared with what is wanted at every look: made where it is
missing, put again where it differs, deleted where it is wanted no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from django.utils import timezone

from controlplane.deployments.provisioners.base import Desired, ProvisioningError, Scaled, Step
from controlplane.deployments.provisioners.sagemaker.account import aws_answers
from controlplane.deployments.provisioners.sagemaker.errors import is_absent
from controlplane.deployments.provisioners.sagemaker.names import Names
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from controlplane.deployments.scaling.policy import Metric, ScalingPolicy, ScheduledBounds

_SCALING: Final = "application-autoscaling"
_ACTIVITIES: Final = 50
_SET: Final = re.compile(r"Setting desired copy count to ([0-9]+)")
ALARM_SECONDS: Final = 30.0
"""Three periods of ten seconds of tracking's alarm, or one of thirty of the way out of zero."""
_METRICS: Final = {
    Metric.CONCURRENCY: "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution",
    Metric.INVOCATIONS: "SageMakerInferenceComponentInvocationsPerCopy",
}
_OURS: Final = "graftwork-"
"""Begins the names of our policies and scheduled actions: others on the same component are others'."""
TRACK, FROM_ZERO = f"{_OURS}track", f"{_OURS}from-zero"


@dataclass(frozen=True, slots=True)
class Registered:
    """What is registered; policies and scheduled actions by name, all as Describe tells them.

    `refused`: why it could not be looked at, "" where it was: nothing else is known then.
    """

    target: Mapping[str, Any] | None = None
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scheduled: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    alarm: Mapping[str, Any] | None = None

    scaled: tuple[Scaled, ...] = ()
    refused: str = ""

    @property
    def any(self) -> bool:
        """Whether something is there, or may be."""
        return self.target is not None or self.alarm is not None or bool(self.refused)

    @property
    def is_shared(self) -> bool:
        """Whether somebody else has put something on the same target."""
        return any(not name.startswith(_OURS) for name in (*self.policies, *self.scheduled))


NOTHING_REGISTERED: Final = Registered()


class Autoscaling:
    """Of one deployment's base component. Asks for nothing where no policy ever was."""

    def __init__(self, account: ServicesAccount, names: Names, desired: Desired) -> None:
        self._account, self._desired, self._policy = account, desired, desired.scaling
        self._refused = ""
        self._component = names.base
        self._alarm = f"{names.base}-no-capacity"
        self._resource = {
            "ServiceNamespace": "sagemaker",
            "ResourceId": f"inference-component/{names.base}",
            "ScalableDimension": "sagemaker:inference-component:DesiredCopyCount",
        }

    def look(self) -> Registered:
        """What is registered. A refusal is told, not raised: the deployment's other parts go on without."""
        if not self._desired.scaled:
            return NOTHING_REGISTERED
        try:
            return replace(self._look(), refused=self._refused)
        except ProvisioningError as error:
            return Registered(refused=str(error))

    def _look(self) -> Registered:
        targets = self._list("describe_scalable_targets", "ScalableTargets", ResourceIds=[self._id])
        alarms = self._account.ask("cloudwatch", "describe_alarms", self._alarm, AlarmNames=[self._alarm])[
            "MetricAlarms"
        ]
        if not targets:
            return Registered(alarm=next(iter(alarms), None))
        one = {key: self._resource[key] for key in ("ResourceId", "ScalableDimension")}
        policies = self._list("describe_scaling_policies", "ScalingPolicies", **one)
        scheduled = self._list("describe_scheduled_actions", "ScheduledActions", **one)
        return Registered(
            targets[0],
            {item["PolicyName"]: item for item in policies},
            {item["ScheduledActionName"]: item for item in scheduled},
            next(iter(alarms), None),
            self._scaled(),
        )

    def _scaled(self) -> tuple[Scaled, ...]:
        """The latest growths, oldest first; one page, since looks follow each other closely."""
        about = {key: self._resource[key] for key in ("ServiceNamespace", "ResourceId", "ScalableDimension")}
        told = self._account.ask(
            _SCALING, "describe_scaling_activities", self._id, MaxResults=_ACTIVITIES, **about
        )["ScalingActivities"]
        found = list[Scaled]()
        before: int | None = None
        for item in sorted(told, key=lambda item: item["StartTime"]):
            match = _SET.search(item["Description"])
            if match is None or item["StatusCode"] not in ("InProgress", "Pending", "Successful"):
                continue
            after, cause = int(match[1]), str(item.get("Cause", ""))
            if self._alarm in cause:
                before = 0
            # Of the oldest one that is told nobody knows how many there were before, unless that was none.
            if before is not None and after > before:
                ended = item.get("EndTime") if item["StatusCode"] == "Successful" else None
                detect = ALARM_SECONDS if "alarm" in cause else 0.0
                event = str(item["ActivityId"])[:64]
                found.append(Scaled(event, before, after, cause, detect, item["StartTime"], ended))
            before = after
        return tuple(found)

    def complete(self, seen: Registered) -> bool:
        """Whether all is registered as wanted, and nothing besides."""
        return not seen.refused and next(self._steps(seen, act=False), None) is None

    def apply(self, seen: Registered) -> Iterator[Step]:
        """A refusal is kept for the next `look`, not raised."""
        if seen.refused:
            return
        try:
            yield from self._steps(seen, act=True)
        except ProvisioningError as error:
            self._refused = str(error)

    def remove(self, seen: Registered, cause: str) -> Iterator[Step]:
        """With the component: a target takes policies and schedule along, others' too; the alarm is ours.

        Raises:
            ProvisioningError: it could not be looked at: what is there would be left behind.
        """
        if seen.refused:
            raise ProvisioningError(seen.refused, transient=True)
        if seen.target is not None:
            self._away("deregister_scalable_target")
            yield Step("deregister_scalable_target", self._id, cause)
        if seen.alarm is not None:
            self._account.ask("cloudwatch", "delete_alarms", self._alarm, AlarmNames=[self._alarm])
            yield Step("delete_alarms", self._alarm, cause)

    @property
    def _id(self) -> str:
        return self._resource["ResourceId"]

    def _steps(self, seen: Registered, *, act: bool) -> Iterator[Step]:
        """What has to be done; done before it is told, if `act`."""
        policy = self._policy
        if policy is None:
            yield from self._end(seen, act=act)
            return
        least, most = policy.bounds(timezone.now())
        bounds = {"MinCapacity": least, "MaxCapacity": most}
        if cause := _difference(bounds, seen.target):
            self._do(act, "register_scalable_target", **bounds)
            yield Step("register_scalable_target", self._id, cause)
        policies = {TRACK: tracking(policy)} | ({FROM_ZERO: from_zero(policy)} if policy.least == 0 else {})
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

    def _end(self, seen: Registered, *, act: bool) -> Iterator[Step]:
        """Without a policy: all of ours, and the target unless somebody else uses it."""
        yield from self._surplus(seen, set(), set(), act=act)
        if seen.target is not None and not seen.is_shared:
            if act:
                self._away("deregister_scalable_target")
            yield Step("deregister_scalable_target", self._id, "it has no scaling policy")
        yield from self._alarms(seen, act=act)

    def _surplus(
        self, seen: Registered, policies: set[str], scheduled: set[str], *, act: bool
    ) -> Iterator[Step]:
        """Only what has our names: a policy that somebody else added is theirs."""
        for name in sorted({name for name in seen.policies if name.startswith(_OURS)} - policies):
            self._do(act, "delete_scaling_policy", PolicyName=name)
            yield Step("delete_scaling_policy", name, "the policy asks for it no more")
        for name in sorted({name for name in seen.scheduled if name.startswith(_OURS)} - scheduled):
            self._do(act, "delete_scheduled_action", ScheduledActionName=name)
            yield Step("delete_scheduled_action", name, "the policy asks for it no more")

    def _alarms(self, seen: Registered, *, act: bool) -> Iterator[Step]:
        """The way out of zero: requests that met no copy carry out the step policy."""
        arn = str(seen.policies.get(FROM_ZERO, {}).get("PolicyARN", ""))
        if self._policy is None or self._policy.least > 0:
            if seen.alarm is not None:
                if act:
                    self._account.ask("cloudwatch", "delete_alarms", self._alarm, AlarmNames=[self._alarm])
                yield Step("delete_alarms", self._alarm, "nothing leads to no copy")
            return
        if not arn:
            # Its address is known once it has been put: at the next look.
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

    def _away(self, operation: str) -> None:
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


def tracking(policy: ScalingPolicy) -> dict[str, Any]:
    """PutScalingPolicy's target tracking."""
    return {
        "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": {
            "TargetValue": policy.target,
            "PredefinedMetricSpecification": {"PredefinedMetricType": _METRICS[policy.metric]},
            "ScaleOutCooldown": policy.out_cooldown,
            "ScaleInCooldown": policy.in_cooldown,
            "DisableScaleIn": policy.protect,
        },
    }


def from_zero(policy: ScalingPolicy) -> dict[str, Any]:
    """PutScalingPolicy's step from zero. It adds: an exact count would take copies away that tracking has
    made meanwhile."""
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
    """PutMetricAlarm: one request in half a minute that found no copy."""
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
    """PutScheduledAction's."""
    hour, minute = map(int, item.at.split(":"))
    days = ",".join(day.upper() for day in item.days)
    return {
        "Schedule": f"cron({minute} {hour} ? * {days} *)",
        "Timezone": zone,
        "ScalableTargetAction": {"MinCapacity": item.min_copies, "MaxCapacity": item.max_copies},
    }


def _difference(wanted: Mapping[str, Any], told: Mapping[str, Any] | None) -> str:
    """In what one differs from the other; "" for nothing. What is told besides does not count."""
    if told is None:
        return "it is not there"
    for name, value in wanted.items():
        has = told.get(name)
        if isinstance(value, Mapping) and isinstance(has, Mapping):
            if found := _difference(value, has):
                return found
        elif has != value:
            return f"{name} is {has}, and {value} is wanted"
    return ""

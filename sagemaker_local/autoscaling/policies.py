"""Scaling policies: step scaling by the customer's alarm, target tracking by alarms of its own."""

from __future__ import annotations

import uuid
from typing import Any, Final

from sagemaker_local.autoscaling import adjustment
from sagemaker_local.autoscaling.metrics import NAMESPACE as METRICS
from sagemaker_local.autoscaling.metrics import PREDEFINED, PREDEFINED_OF_VARIANTS, dimensions
from sagemaker_local.autoscaling.scalable import Scalable
from sagemaker_local.autoscaling.targets import Targets, page_of_records, scalable_of
from sagemaker_local.aws.json_service import Handler
from sagemaker_local.aws_errors import ObjectNotFoundException, ValidationException
from sagemaker_local.resources.alarms import Call
from sagemaker_local.resources.store import Region

COOLDOWN: Final = 300
"""Default cooldown of a target tracking policy, in seconds."""
_CONFIGURATIONS: Final = {
    "StepScaling": "StepScalingPolicyConfiguration",
    "TargetTrackingScaling": "TargetTrackingScalingPolicyConfiguration",
}


class Policies:
    """PutScalingPolicy and related operations; `alarm` runs a policy."""

    def __init__(self, region: Region, targets: Targets, cloudwatch: Call) -> None:
        self._region, self._targets, self._cloudwatch = region, targets, cloudwatch
        self.policies: dict[str, dict[str, Any]] = region.store.scaling.setdefault("policies", {})
        self._last: dict[str, float] = {}

    @property
    def operations(self) -> dict[str, Handler]:
        return {
            "PutScalingPolicy": self.put,
            "DescribeScalingPolicies": self.describe,
            "DeleteScalingPolicy": self.delete,
        }

    async def put(self, request: dict[str, Any]) -> dict[str, Any]:
        scalable = scalable_of(request)
        self._targets.get(scalable)
        old = self.policies.get(_key(scalable, request["PolicyName"]), {})
        kind = request.get("PolicyType", old.get("PolicyType", "StepScaling"))
        field = _CONFIGURATIONS.get(kind)
        if field is None or old.get("PolicyType", kind) != kind:
            raise ValidationException(f"Policy type {kind} is not served here, or differs from the policy's.")
        if field not in request:
            raise ValidationException(f"{field} is required for {kind}.")
        number = uuid.uuid5(uuid.NAMESPACE_URL, _key(scalable, request["PolicyName"]))
        place = f"scalingPolicy:{number}:resource/sagemaker/{scalable.resource_id}"
        arn = self._targets.arn(f"{place}:policyName/{request['PolicyName']}")
        policy = {
            "PolicyARN": arn,
            "CreationTime": self._region.clock.now(),
            "Alarms": [],
            **old,
            **request,
            "PolicyType": kind,
        }
        if kind == "StepScaling":
            adjustment.check(request[field])
        else:
            policy["Alarms"] = await self._tracking_alarms(policy, scalable, request[field])
        self.policies[_key(scalable, request["PolicyName"])] = policy
        self._region.changed()
        return {"PolicyARN": arn, "Alarms": policy["Alarms"]}

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        found, more = page_of_records(self.policies.values(), request, PolicyName=request.get("PolicyNames"))
        shown = [
            {**policy, "Alarms": policy["Alarms"] or await self._alarms_of(policy["PolicyARN"])}
            for policy in found
        ]
        return {"ScalingPolicies": shown, **more}

    async def delete(self, request: dict[str, Any]) -> None:
        scalable = scalable_of(request)
        key = _key(scalable, request["PolicyName"])
        if key not in self.policies:
            raise ObjectNotFoundException(f"No scaling policy found for {scalable.resource_id}.")
        await self._remove(key)

    async def remove_all(self, scalable: Scalable) -> None:
        """Remove all policies of a deregistered target."""
        for key in [key for key in self.policies if key.startswith(scalable.key + "|")]:
            await self._remove(key)

    async def alarm(self, arn: str, name: str, value: float, threshold: float) -> None:
        """Run the policy `arn`, if it exists, for an alarm in ALARM whose metric is at `value`."""
        for key, policy in self.policies.items():
            if policy["PolicyARN"] == arn:
                await self._carry_out(key, policy, name, value, threshold)

    async def _carry_out(
        self, key: str, policy: dict[str, Any], alarm: str, value: float, threshold: float
    ) -> None:
        scalable = Scalable(policy["ResourceId"], policy["ScalableDimension"])
        target, now = self._targets.targets.get(scalable.key), self._targets.resources.desired(scalable)
        if target is None or now is None:
            return
        if policy["PolicyType"] == "StepScaling":
            config = policy["StepScalingPolicyConfiguration"]
            wanted = adjustment.step(config, now, value - threshold)
            cooldown = config.get("Cooldown", 0)
        else:
            config = policy["TargetTrackingScalingPolicyConfiguration"]
            wanted = adjustment.track(config["TargetValue"], now, value)
            if wanted < now and (config.get("DisableScaleIn", False) or "AlarmHigh" in alarm):
                return
            cooldown = config.get("ScaleOutCooldown" if wanted > now else "ScaleInCooldown", COOLDOWN)
        switch = "DynamicScalingOutSuspended" if wanted > now else "DynamicScalingInSuspended"
        moment = self._region.clock.now()
        if target["SuspendedState"][switch] or moment < self._last.get(key, 0.0) + cooldown:
            return
        cause = f"monitor alarm {alarm} in state ALARM triggered policy {policy['PolicyName']}"
        if await self._targets.scale(scalable, wanted, cause):
            self._last[key] = moment

    async def _tracking_alarms(
        self, policy: dict[str, Any], scalable: Scalable, config: dict[str, Any]
    ) -> list[dict[str, str]]:
        """Put the alarms: high is over the target for 3 periods, low is under 90% of it for 15 minutes."""
        metric = _metric(config, scalable)
        period, lows = (10, 90) if metric.pop("high_resolution", False) else (60, 15)
        sides = [("AlarmHigh", "GreaterThanThreshold", 1.0, 3), ("AlarmLow", "LessThanThreshold", 0.9, lows)]
        alarms = []
        number = uuid.uuid5(uuid.NAMESPACE_URL, policy["PolicyARN"])
        for side, comparison, share, periods in sides:
            name = f"TargetTracking-{scalable.resource_id}-{side}-{number}"
            wanted = {
                "AlarmName": name,
                "AlarmActions": [policy["PolicyARN"]],
                "ComparisonOperator": comparison,
                "Threshold": config["TargetValue"] * share,
                "EvaluationPeriods": periods,
                "Period": period,
                **metric,
            }
            await self._cloudwatch("PutMetricAlarm", wanted)
            answer = await self._cloudwatch("DescribeAlarms", {"AlarmNames": [name]})
            alarms.append({"AlarmName": name, "AlarmARN": answer["MetricAlarms"][0]["AlarmArn"]})
        return alarms

    async def _alarms_of(self, arn: str) -> list[dict[str, str]]:
        """Return the customer's alarms that have a step policy as an action."""
        answer = await self._cloudwatch("DescribeAlarms", {})
        return [
            {"AlarmName": alarm["AlarmName"], "AlarmARN": alarm["AlarmArn"]}
            for alarm in answer.get("MetricAlarms", [])
            if arn in alarm.get("AlarmActions", [])
        ]

    async def _remove(self, key: str) -> None:
        policy = self.policies.pop(key)
        if policy["Alarms"]:
            names = [alarm["AlarmName"] for alarm in policy["Alarms"]]
            await self._cloudwatch("DeleteAlarms", {"AlarmNames": names})
        self._region.changed()


def _key(scalable: Scalable, name: str) -> str:
    return f"{scalable.key}|{name}"


def _metric(config: dict[str, Any], scalable: Scalable) -> dict[str, Any]:
    """Return the metric of the policy's alarms. Raises ValidationException."""
    predefined, own = config.get("PredefinedMetricSpecification"), config.get("CustomizedMetricSpecification")
    if (predefined is None) == (own is None):
        raise ValidationException("Specify either a predefined or a customized metric, and not both.")
    if own is not None:
        if not {"MetricName", "Namespace", "Statistic"} <= set(own):
            raise ValidationException("A customized metric needs MetricName, Namespace and Statistic here.")
        kept = ("MetricName", "Namespace", "Statistic", "Dimensions", "Unit")
        return {name: own[name] for name in kept if name in own}
    kind = predefined["PredefinedMetricType"] if predefined is not None else ""
    known = PREDEFINED if scalable.component else PREDEFINED_OF_VARIANTS
    if kind not in known:
        raise ValidationException(f"{kind} is no metric of {scalable.resource_id} that is served here.")
    name, statistic, high_resolution = known[kind]
    return {
        "MetricName": name,
        "Namespace": METRICS,
        "Statistic": statistic,
        "Dimensions": dimensions(scalable.component or scalable.variant),
        "high_resolution": high_resolution,
    }

"""Scalable targets and their scaling activities."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Final

from sagemaker_local.autoscaling.scalable import Resources, Scalable
from sagemaker_local.aws.json_service import Handler
from sagemaker_local.aws_errors import ObjectNotFoundException, ValidationException
from sagemaker_local.resources.listing import window
from sagemaker_local.resources.store import Region
from sagemaker_local.state import ACCOUNT_ID

PAGE: Final = 50
NAMESPACE: Final = "sagemaker"
_ROLE: Final = (
    f"arn:aws:iam::{ACCOUNT_ID}:role/aws-service-role/sagemaker.application-autoscaling.amazonaws.com/"
    "AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint"
)
_SWITCHES: Final = ("DynamicScalingInSuspended", "DynamicScalingOutSuspended", "ScheduledScalingSuspended")


class Targets:
    """RegisterScalableTarget and related operations; `scale` changes a capacity within its bounds."""

    def __init__(self, region: Region, resources: Resources) -> None:
        self._region, self.resources = region, resources
        self.targets: dict[str, dict[str, Any]] = region.store.scaling.setdefault("targets", {})
        self._activities: list[dict[str, Any]] = region.store.scaling.setdefault("activities", [])

    @property
    def operations(self) -> dict[str, Handler]:
        return {
            "RegisterScalableTarget": self.register,
            "DescribeScalableTargets": self.describe,
            "DescribeScalingActivities": self.describe_activities,
        }

    async def register(self, request: dict[str, Any]) -> dict[str, Any]:
        request.pop("Tags", None)
        scalable = scalable_of(request)
        self.resources.check(scalable)
        old = self.targets.get(scalable.key)
        if old is None and not {"MinCapacity", "MaxCapacity"} <= set(request):
            raise ValidationException("MinCapacity and MaxCapacity are required for a new scalable target.")
        number = uuid.uuid5(uuid.NAMESPACE_URL, scalable.key).hex
        new = {
            "RoleARN": _ROLE,
            "CreationTime": self._region.clock.now(),
            "ScalableTargetARN": self.arn(f"scalable-target/{number}"),
            "SuspendedState": dict.fromkeys(_SWITCHES, False),
            **(old or {}),
        }
        suspended = {**new["SuspendedState"], **request.pop("SuspendedState", {})}
        new |= request | {"SuspendedState": suspended}
        check_bounds(new["MinCapacity"], new["MaxCapacity"])
        self.targets[scalable.key] = new
        self._region.changed()
        await self.into_bounds(scalable, "the scalable target was registered")
        return {"ScalableTargetARN": new["ScalableTargetARN"]}

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        shown, more = page_of_records(self.targets.values(), request, ResourceId=request.get("ResourceIds"))
        return {"ScalableTargets": shown, **more}

    async def describe_activities(self, request: dict[str, Any]) -> dict[str, Any]:
        self.settle()
        shown, more = page_of_records(reversed(self._activities), request)
        return {"ScalingActivities": shown, **more}

    def get(self, scalable: Scalable) -> dict[str, Any]:
        """Return the target. Raises ObjectNotFoundException."""
        if (target := self.targets.get(scalable.key)) is None:
            raise ObjectNotFoundException(
                f"No scalable target registered for service namespace: {NAMESPACE}, resource ID: "
                f"{scalable.resource_id}, scalable dimension: {scalable.dimension}"
            )
        return target

    async def scale(self, scalable: Scalable, wanted: int, cause: str) -> bool:
        """Set a capacity within the target's bounds; True if it was changed."""
        target, now = self.get(scalable), self.resources.desired(scalable)
        capacity = min(max(wanted, target["MinCapacity"]), target["MaxCapacity"])
        if now is None or capacity == now or await self.resources.set(scalable, capacity):
            return False
        unit = "copy" if scalable.component else "instance"
        self._activities.append(
            {
                "ActivityId": str(uuid.uuid4()),
                "ServiceNamespace": NAMESPACE,
                "ResourceId": scalable.resource_id,
                "ScalableDimension": scalable.dimension,
                "Description": f"Setting desired {unit} count to {capacity}.",
                "Cause": cause,
                "StartTime": self._region.clock.now(),
                "StatusCode": "InProgress",
                "StatusMessage": f"Successfully set desired {unit} count to {capacity}. Waiting for change "
                "to be fulfilled by sagemaker.",
            }
        )
        self._region.changed()
        return True

    async def into_bounds(self, scalable: Scalable, why: str) -> None:
        """Bring a capacity that is out of bounds to the nearer bound."""
        if (now := self.resources.desired(scalable)) is not None:
            await self.scale(scalable, now, f"minimum or maximum capacity was changed: {why}")

    def settle(self) -> None:
        """Complete the activities whose capacity has been reached."""
        for activity in self._activities:
            scalable = Scalable(activity["ResourceId"], activity["ScalableDimension"])
            if activity["StatusCode"] == "InProgress" and self.resources.fulfilled(scalable):
                message = activity["StatusMessage"].replace("Waiting for change to be", "Change successfully")
                activity |= {
                    "StatusCode": "Successful",
                    "EndTime": self._region.clock.now(),
                    "StatusMessage": message,
                }

    def arn(self, resource: str) -> str:
        return f"arn:aws:application-autoscaling:{self._region.config.region}:{ACCOUNT_ID}:{resource}"


def scalable_of(request: dict[str, Any]) -> Scalable:
    """Return the scalable resource of a request. Raises ValidationException for another namespace."""
    _demand_namespace(request)
    return Scalable(request["ResourceId"], request["ScalableDimension"])


def page_of_records(
    records: Iterable[dict[str, Any]], request: dict[str, Any], **names: list[str] | None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a page of the records that a Describe request asks for, and NextToken if there are more.

    Args:
        names: a member of the records -> its values that the request lists; None or none for any.
    """
    _demand_namespace(request)
    one = {name: request.get(name) for name in ("ResourceId", "ScalableDimension")}
    found = [
        record
        for record in records
        if all(value in (None, record[name]) for name, value in one.items())
        and all(not values or record[name] in values for name, values in names.items())
    ]
    return window(found, request, PAGE)


def _demand_namespace(request: dict[str, Any]) -> None:
    """Raise ValidationException for any namespace but SageMaker's."""
    if request["ServiceNamespace"] != NAMESPACE:
        raise ValidationException(f"The local SageMaker scales service namespace {NAMESPACE} alone.")


def check_bounds(low: int, high: int) -> None:
    """Raise ValidationException for invalid bounds."""
    if not 0 <= low <= high:
        raise ValidationException(f"Capacities must be 0 <= minimum <= maximum, got {low} and {high}.")

"""Scheduled actions: they change a target's bounds, and scaling follows."""

from __future__ import annotations

import uuid
from typing import Any

from sagemaker_local.autoscaling.scalable import Scalable
from sagemaker_local.autoscaling.schedule import Schedule
from sagemaker_local.autoscaling.targets import Targets, check_bounds, page_of_records, scalable_of
from sagemaker_local.aws.json_service import Handler
from sagemaker_local.aws_errors import ObjectNotFoundException, ValidationException
from sagemaker_local.resources.store import Region


class ScheduledActions:
    """PutScheduledAction and related operations; `run` runs due actions."""

    def __init__(self, region: Region, targets: Targets) -> None:
        self._region, self._targets = region, targets
        self.actions: dict[str, dict[str, Any]] = region.store.scaling.setdefault("actions", {})
        self._until = region.clock.now()

    @property
    def operations(self) -> dict[str, Handler]:
        return {
            "PutScheduledAction": self.put,
            "DescribeScheduledActions": self.describe,
            "DeleteScheduledAction": self.delete,
        }

    async def put(self, request: dict[str, Any]) -> dict[str, Any]:
        scalable = scalable_of(request)
        self._targets.get(scalable)
        key = f"{scalable.key}|{request['ScheduledActionName']}"
        old = self.actions.get(key, {})
        number = uuid.uuid5(uuid.NAMESPACE_URL, key)
        place = f"scheduledAction:{number}:resource/sagemaker/{scalable.resource_id}"
        action = {
            "ScheduledActionARN": self._targets.arn(f"{place}:scheduledActionName/{number}"),
            "CreationTime": self._region.clock.now(),
            **old,
            **request,
        }
        if "Schedule" not in action or not action.get("ScalableTargetAction"):
            raise ValidationException("A scheduled action needs Schedule and ScalableTargetAction.")
        _schedule(action)
        self.actions[key] = action
        self._region.changed()
        return {}

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        names = request.get("ScheduledActionNames")
        shown, more = page_of_records(self.actions.values(), request, ScheduledActionName=names)
        return {"ScheduledActions": shown, **more}

    async def delete(self, request: dict[str, Any]) -> None:
        key = f"{scalable_of(request).key}|{request['ScheduledActionName']}"
        if self.actions.pop(key, None) is None:
            raise ObjectNotFoundException(f"No scheduled action {request['ScheduledActionName']} found.")
        self._region.changed()

    def remove_all(self, scalable: Scalable) -> None:
        """Remove all actions of a deregistered target."""
        for key in [key for key in self.actions if key.startswith(scalable.key + "|")]:
            del self.actions[key]

    async def run(self) -> None:
        """Run the actions that have become due since the last call."""
        after, self._until = self._until, self._region.clock.now()
        for action in list(self.actions.values()):
            begin, end = action.get("StartTime", 0.0), action.get("EndTime", float("inf"))
            if begin <= self._until <= end and _schedule(action).due(after, self._until):
                await self._carry_out(action)

    async def _carry_out(self, action: dict[str, Any]) -> None:
        scalable = Scalable(action["ResourceId"], action["ScalableDimension"])
        target = self._targets.get(scalable)
        if target["SuspendedState"]["ScheduledScalingSuspended"]:
            return
        change = action["ScalableTargetAction"]
        low = change.get("MinCapacity", target["MinCapacity"])
        high = change.get("MaxCapacity", target["MaxCapacity"])
        check_bounds(low, high)
        target |= {"MinCapacity": low, "MaxCapacity": high}
        self._region.changed()
        await self._targets.into_bounds(scalable, f"scheduled action {action['ScheduledActionName']}")


def _schedule(action: dict[str, Any]) -> Schedule:
    zone = action.get("Timezone", "UTC")
    return Schedule.parse(action["Schedule"], zone, action.get("StartTime", action["CreationTime"]))

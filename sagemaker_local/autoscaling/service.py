"""Application Auto Scaling as a whole: its operations, and its work at each step of the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sagemaker_local.autoscaling.alarms import Alarms
from sagemaker_local.autoscaling.metrics import Metrics
from sagemaker_local.autoscaling.policies import Policies
from sagemaker_local.autoscaling.scalable import Resources
from sagemaker_local.autoscaling.scheduled_actions import ScheduledActions
from sagemaker_local.autoscaling.targets import Targets, scalable_of
from sagemaker_local.aws.json_service import Handler
from sagemaker_local.resources.alarms import Call
from sagemaker_local.resources.components import Components
from sagemaker_local.resources.endpoints import Endpoints
from sagemaker_local.resources.hosting import Hosting
from sagemaker_local.resources.store import Region
from sagemaker_local.traffic import Traffic


class AutoScaling:
    """Combines targets, policies, alarms and schedules."""

    def __init__(
        self,
        region: Region,
        components: Components,
        endpoints: Endpoints,
        hosting: Hosting,
        traffic: Traffic,
        cloudwatch: Call,
        watched: Callable[[], bool],
    ) -> None:
        """`watched` returns True if CloudWatch runs; before its first call there are no alarms."""
        self._watched = watched
        self._targets = Targets(region, Resources(region, components, endpoints))
        self._policies = Policies(region, self._targets, cloudwatch)
        self._scheduled = ScheduledActions(region, self._targets)
        self._metrics = Metrics(region.clock, components, hosting, traffic, cloudwatch)
        self._alarms = Alarms(region.clock, cloudwatch, self._policies.alarm)
        self._region = region

    @property
    def operations(self) -> dict[str, Handler]:
        return {
            **self._targets.operations,
            **self._policies.operations,
            **self._scheduled.operations,
            "DeregisterScalableTarget": self.deregister,
        }

    async def deregister(self, request: dict[str, Any]) -> dict[str, Any]:
        """Deregister a target with its policies, their alarms and its scheduled actions."""
        scalable = scalable_of(request)
        self._targets.get(scalable)
        await self._policies.remove_all(scalable)
        self._scheduled.remove_all(scalable)
        del self._targets.targets[scalable.key]
        self._region.changed()
        return {}

    async def step(self) -> None:
        """Run everything due at the clock's time: schedules, metrics, alarms and their policies."""
        self._targets.settle()
        await self._scheduled.run()
        if self._watched():
            await self._metrics.publish()
            await self._alarms.evaluate()

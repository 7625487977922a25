"""CloudWatch alarms in deployments: an alarm during an update's bake time rolls the update back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from sagemaker_local.clock import Clock

Call = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Calls a CloudWatch operation by name; inputs and outputs have botocore's names."""
BAKE_STEP: Final = 5.0
"""Seconds of the clock between two checks of the alarms."""


class AlarmStates:
    """Reads alarm states from CloudWatch, only when a deployment names alarms."""

    def __init__(self, clock: Clock, cloudwatch: Call) -> None:
        self._clock, self._cloudwatch = clock, cloudwatch

    async def watch(self, deployment: dict[str, Any] | None) -> str:
        """Bake an endpoint's blue/green or rolling deployment; return "" or the reason to roll it back."""
        policies = deployment or {}
        traffic = policies.get("BlueGreenUpdatePolicy", {}).get("TrafficRoutingConfiguration", {})
        seconds = policies.get("RollingUpdatePolicy", traffic).get("WaitIntervalInSeconds", 0)
        return await self.bake(policies, seconds)

    async def bake(self, deployment: dict[str, Any], seconds: float) -> str:
        """Wait for `seconds`; return "", or the reason to roll back if a configured alarm fires."""
        names = [
            item["AlarmName"] for item in deployment.get("AutoRollbackConfiguration", {}).get("Alarms", [])
        ]
        end = self._clock.now() + seconds
        while True:
            if names and (ringing := await self._ringing(names)):
                return f"Alarms went off during the deployment, which was rolled back: {', '.join(ringing)}"
            if (left := end - self._clock.now()) <= 0:
                return ""
            await self._clock.sleep(min(left, BAKE_STEP) if names else left)

    async def _ringing(self, names: list[str]) -> list[str]:
        answer = await self._cloudwatch("DescribeAlarms", {"AlarmNames": names})
        found = answer.get("MetricAlarms", [])
        # moto ignores StateValue in a request by name.
        return sorted(alarm["AlarmName"] for alarm in found if alarm["StateValue"] == "ALARM")

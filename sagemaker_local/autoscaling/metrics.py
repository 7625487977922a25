"""SageMaker's metrics of inference components, published to CloudWatch at every step of the clock."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

from sagemaker_local.clock import Clock
from sagemaker_local.resources.alarms import Call
from sagemaker_local.resources.components import Components
from sagemaker_local.traffic import Traffic

NAMESPACE: Final = "AWS/SageMaker"
CONCURRENCY: Final = "ConcurrentRequestsPerCopy"
INVOCATIONS: Final = "InvocationsPerCopy"
NO_CAPACITY: Final = "NoCapacityInvocationFailures"
PREDEFINED: Final[Mapping[str, tuple[str, str, bool]]] = {
    "SageMakerInferenceComponentInvocationsPerCopy": (INVOCATIONS, "Sum", False),
    "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution": (CONCURRENCY, "Maximum", True),
}
"""Metric, statistic and whether it is high-resolution, by its name in target tracking."""
_BATCH: Final = 500


class Metrics:
    """Publishes the copies' current concurrency, and counts since the last step."""

    def __init__(self, clock: Clock, components: Components, traffic: Traffic, cloudwatch: Call) -> None:
        self._clock, self._components = clock, components
        self._traffic, self._cloudwatch = traffic, cloudwatch

    async def publish(self) -> None:
        invocations, failures = self._traffic.take()
        data = []
        for name, base in self._components.bases.items():
            if copies := base.fleet.serving:
                outstanding = sum(copy.load.outstanding for copy in copies)
                data.append(self._datum(name, CONCURRENCY, outstanding / len(copies)))
                data.append(self._datum(name, INVOCATIONS, invocations[name] / len(copies)))
        data += [self._datum(name, "Invocations", float(count)) for name, count in invocations.items()]
        data += [self._datum(name, NO_CAPACITY, float(count)) for name, count in failures.items()]
        for first in range(0, len(data), _BATCH):
            batch = {"Namespace": NAMESPACE, "MetricData": data[first : first + _BATCH]}
            await self._cloudwatch("PutMetricData", batch)

    def _datum(self, component: str, metric: str, value: float) -> dict[str, Any]:
        moment = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC)
        dimensions = [{"Name": "InferenceComponentName", "Value": component}]
        return {"MetricName": metric, "Dimensions": dimensions, "Timestamp": moment, "Value": value}

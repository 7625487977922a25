"""SageMaker's metrics of components and of variants with a model, published at every step of the clock."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

from sagemaker_local.clock import Clock
from sagemaker_local.resources.alarms import Call
from sagemaker_local.resources.components import Components
from sagemaker_local.resources.hosting import Hosting
from sagemaker_local.traffic import Traffic

NAMESPACE: Final = "AWS/SageMaker"
NO_CAPACITY: Final = "NoCapacityInvocationFailures"
PREDEFINED: Final[Mapping[str, tuple[str, str, bool]]] = {
    "SageMakerInferenceComponentInvocationsPerCopy": ("InvocationsPerCopy", "Sum", False),
    "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution": (
        "ConcurrentRequestsPerCopy",
        "Maximum",
        True,
    ),
}
"""Metric, statistic and whether it is high-resolution, by its name in target tracking."""
PREDEFINED_OF_VARIANTS: Final[Mapping[str, tuple[str, str, bool]]] = {
    "SageMakerVariantInvocationsPerInstance": ("InvocationsPerInstance", "Sum", False),
    "SageMakerVariantConcurrentRequestsPerModelHighResolution": (
        "ConcurrentRequestsPerModel",
        "Maximum",
        True,
    ),
}
"""As PREDEFINED, of variants with a model."""
_BATCH: Final = 500


class Metrics:
    """Publishes the copies' current concurrency, and counts since the last step."""

    def __init__(
        self, clock: Clock, components: Components, hosting: Hosting, traffic: Traffic, cloudwatch: Call
    ) -> None:
        self._clock, self._components, self._hosting = clock, components, hosting
        self._traffic, self._cloudwatch = traffic, cloudwatch

    async def publish(self) -> None:
        invocations, failures = self._traffic.take()
        data = []
        bases = {name: base.fleet for name, base in self._components.bases.items()}
        for fleets, metrics in ((bases, PREDEFINED), (self._hosting.models(), PREDEFINED_OF_VARIANTS)):
            per_minute, concurrent = (metric for metric, _, _ in metrics.values())
            for name, fleet in fleets.items():
                if copies := fleet.serving:
                    outstanding = sum(copy.load.outstanding for copy in copies)
                    data.append(self._datum(name, concurrent, outstanding / len(copies)))
                    data.append(self._datum(name, per_minute, invocations[name] / len(copies)))
        data += [self._datum(name, "Invocations", float(count)) for name, count in invocations.items()]
        data += [self._datum(name, NO_CAPACITY, float(count)) for name, count in failures.items()]
        for first in range(0, len(data), _BATCH):
            batch = {"Namespace": NAMESPACE, "MetricData": data[first : first + _BATCH]}
            await self._cloudwatch("PutMetricData", batch)

    def _datum(self, name: str, metric: str, value: float) -> dict[str, Any]:
        moment = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC)
        return {"MetricName": metric, "Dimensions": dimensions(name), "Timestamp": moment, "Value": value}


def dimensions(name: str) -> list[dict[str, str]]:
    """Return the dimensions of a component, or of a variant by `endpoint/variant`."""
    endpoint, _, variant = name.partition("/")
    if variant:
        return [{"Name": "EndpointName", "Value": endpoint}, {"Name": "VariantName", "Value": variant}]
    return [{"Name": "InferenceComponentName", "Value": name}]

"""Models and endpoint configurations, which are records only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.copies.command import ContainerSpec
from sagemaker_local.resources import instances
from sagemaker_local.resources.collection import Collection
from sagemaker_local.resources.pools import demand_pools, pool_types
from sagemaker_local.resources.records import ENDPOINT_CONFIG, MODEL, Record
from sagemaker_local.resources.store import Region, tags

METRICS_SECONDS: Final = (10, 30, 60, 120, 180, 240, 300)
"""SageMaker's intervals of metrics; its service model has no enumeration of them."""


class Models(Collection[Record]):
    """CreateModel and related operations. Endpoints and components keep a copy of their model."""

    def __init__(self, region: Region) -> None:
        super().__init__(region, MODEL, region.store.models)

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name, arn = self._new_name(request)
        if ("PrimaryContainer" in request) == bool(request.get("Containers")):
            raise ValidationException("Specify either PrimaryContainer or Containers, and not both.")
        for container in [request.get("PrimaryContainer"), *request.get("Containers", [])]:
            if container is not None and "Image" not in container and "ModelPackageName" not in container:
                raise ValidationException("Specify either Image or ModelPackageName for each container.")
            demand_container_metrics(container or {})
            if container is not None and {"ModelDataUrl", "ModelDataSource"} <= set(container):
                raise ValidationException("Specify either ModelDataUrl or ModelDataSource, and not both.")
        now = self._region.clock.now()
        return self._add(Record(name, arn, request, now, now, tags=tags(request)))

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"EnableNetworkIsolation": False, **await super().describe(request)}


class EndpointConfigs(Collection[Record]):
    """CreateEndpointConfig and related operations."""

    def __init__(self, region: Region) -> None:
        super().__init__(region, ENDPOINT_CONFIG, region.store.configs)

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name, arn = self._new_name(request)
        variants = [*request["ProductionVariants"], *request.get("ShadowProductionVariants", [])]
        refuse_repeated([variant["VariantName"] for variant in variants])
        _demand_seconds(request.get("MetricsConfig", {}))
        for variant in variants:
            self._check(variant, "ExecutionRoleArn" in request)
        now = self._region.clock.now()
        return self._add(Record(name, arn, request, now, now, tags=tags(request)))

    def _check(self, variant: dict[str, Any], has_role: bool) -> None:
        if (model := variant.get("ModelName")) is not None:
            self._region.model(model)
        elif not has_role:
            raise ValidationException("ExecutionRoleArn is required when a variant has no ModelName.")
        if "ServerlessConfig" in variant:
            raise ValidationException("The local SageMaker serves no serverless variants.")
        demand_pools(variant)
        for kind in pool_types(variant):
            instances.size(kind, self._region.config.instance_types)
        count, managed = variant.get("InitialInstanceCount", 1), variant.get("ManagedInstanceScaling", {})
        low, high = managed.get("MinInstanceCount", 0), managed.get("MaxInstanceCount", count)
        if managed.get("Status") == "ENABLED" and not low <= count <= high:
            raise ValidationException(
                f"InitialInstanceCount {count} must lie between MinInstanceCount {low} and "
                f"MaxInstanceCount {high}."
            )


def demand_container_metrics(container: Mapping[str, Any]) -> None:
    """Raise ValidationException for a container's metrics at an interval that SageMaker does not have."""
    for endpoint in container.get("ContainerMetricsConfig", {}).get("MetricsEndpoints", ()):
        _demand_seconds(endpoint)


def _demand_seconds(config: Mapping[str, Any]) -> None:
    seconds = config.get("MetricPublishFrequencyInSeconds", METRICS_SECONDS[0])
    if seconds not in METRICS_SECONDS:
        allowed = ", ".join(map(str, METRICS_SECONDS))
        raise ValidationException(f"MetricPublishFrequencyInSeconds must be one of {allowed}, got {seconds}.")


def refuse_repeated(variants: Sequence[str]) -> None:
    """Raise ValidationException if a variant's name occurs twice in a request."""
    for name in variants:
        if variants.count(name) > 1:
            raise ValidationException(f'The variant name "{name}" was non-unique within the request.')


def models_of(config: dict[str, Any], region: Region) -> dict[str, dict[str, Any]]:
    """Return the inputs of the variants' models, by name. Raises ValidationException for a missing one."""
    names = [variant["ModelName"] for variant in config["ProductionVariants"] if "ModelName" in variant]
    return {name: region.model(name).spec for name in names}


def container_of(model: dict[str, Any]) -> ContainerSpec:
    """Return the container specification of a model, by CreateModel's input.

    Raises:
        ValidationException: the model is a pipeline of containers.
    """
    containers = [model.get("PrimaryContainer"), *model.get("Containers", [])]
    given = [container for container in containers if container is not None]
    if len(given) != 1:
        raise ValidationException("The local SageMaker runs models of one container.")
    source = given[0].get("ModelDataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
    artifact = given[0].get("ModelDataUrl", source)
    additional = {
        item["ChannelName"]: item["S3DataSource"]["S3Uri"]
        for item in given[0].get("AdditionalModelDataSources", ())
    }
    return ContainerSpec(given[0].get("Image", ""), artifact, given[0].get("Environment", {}), additional)

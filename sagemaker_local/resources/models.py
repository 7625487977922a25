"""Models and endpoint configurations, which are records only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sagemaker_local.aws.json_service import Handler
from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.copies.command import ContainerSpec
from sagemaker_local.resources import instances
from sagemaker_local.resources.listing import page
from sagemaker_local.resources.records import Record
from sagemaker_local.resources.store import Region, get_record, refuse_existing, tags


class Models:
    """CreateModel and related operations."""

    def __init__(self, region: Region) -> None:
        self._region, self._models = region, region.store.models

    @property
    def operations(self) -> dict[str, Handler]:
        return {
            "CreateModel": self.create,
            "DescribeModel": self.describe,
            "ListModels": self.list_all,
            "DeleteModel": self.delete,
        }

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["ModelName"]
        arn = self._region.arn("model", name)
        refuse_existing(self._models, "model", arn)
        if ("PrimaryContainer" in request) == bool(request.get("Containers")):
            raise ValidationException("Specify either PrimaryContainer or Containers, and not both.")
        for container in [request.get("PrimaryContainer"), *request.get("Containers", [])]:
            if container is not None and "Image" not in container and "ModelPackageName" not in container:
                raise ValidationException("Specify either Image or ModelPackageName for each container.")
            if container is not None and {"ModelDataUrl", "ModelDataSource"} <= set(container):
                raise ValidationException("Specify either ModelDataUrl or ModelDataSource, and not both.")
        now = self._region.clock.now()
        self._models[name] = Record(name, arn, request, now, now, tags=tags(request))
        self._region.changed()
        return {"ModelArn": arn}

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._get(request["ModelName"])
        shown = {"EnableNetworkIsolation": False, **record.spec}
        return {**shown, "ModelArn": record.arn, "CreationTime": record.created}

    async def list_all(self, request: dict[str, Any]) -> dict[str, Any]:
        records, more = page(self._models.values(), request)
        shown = [
            {"ModelName": item.name, "ModelArn": item.arn, "CreationTime": item.created} for item in records
        ]
        return {"Models": shown, **more}

    async def delete(self, request: dict[str, Any]) -> None:
        """Delete only the record: endpoints and components keep a copy of their model."""
        del self._models[self._get(request["ModelName"]).name]
        self._region.changed()

    def _get(self, name: str) -> Record:
        return get_record(self._models, name, "model", self._region.arn("model", name))


class EndpointConfigs:
    """CreateEndpointConfig and related operations."""

    def __init__(self, region: Region) -> None:
        self._region, self._configs = region, region.store.configs

    @property
    def operations(self) -> dict[str, Handler]:
        return {
            "CreateEndpointConfig": self.create,
            "DescribeEndpointConfig": self.describe,
            "ListEndpointConfigs": self.list_all,
            "DeleteEndpointConfig": self.delete,
        }

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["EndpointConfigName"]
        arn = self._region.arn("endpoint-config", name)
        refuse_existing(self._configs, "endpoint configuration", arn)
        variants = [*request["ProductionVariants"], *request.get("ShadowProductionVariants", [])]
        refuse_repeated([variant["VariantName"] for variant in variants])
        for variant in variants:
            self._check(variant, "ExecutionRoleArn" in request)
        now = self._region.clock.now()
        self._configs[name] = Record(name, arn, request, now, now, tags=tags(request))
        self._region.changed()
        return {"EndpointConfigArn": arn}

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._get(request["EndpointConfigName"])
        return {**record.spec, "EndpointConfigArn": record.arn, "CreationTime": record.created}

    async def list_all(self, request: dict[str, Any]) -> dict[str, Any]:
        records, more = page(self._configs.values(), request)
        shown = [
            {"EndpointConfigName": item.name, "EndpointConfigArn": item.arn, "CreationTime": item.created}
            for item in records
        ]
        return {"EndpointConfigs": shown, **more}

    async def delete(self, request: dict[str, Any]) -> None:
        del self._configs[self._get(request["EndpointConfigName"]).name]
        self._region.changed()

    def _get(self, name: str) -> Record:
        arn = self._region.arn("endpoint-config", name)
        return get_record(self._configs, name, "endpoint configuration", arn)

    def _check(self, variant: dict[str, Any], has_role: bool) -> None:
        if (model := variant.get("ModelName")) is not None:
            get_record(self._region.store.models, model, "model", self._region.arn("model", model))
        elif not has_role:
            raise ValidationException("ExecutionRoleArn is required when a variant has no ModelName.")
        if "ServerlessConfig" in variant or "InstanceType" not in variant:
            raise ValidationException("The local SageMaker serves variants with an InstanceType alone.")
        instances.size(variant["InstanceType"], self._region.config.instance_types)
        count, managed = variant.get("InitialInstanceCount", 1), variant.get("ManagedInstanceScaling", {})
        low, high = managed.get("MinInstanceCount", 0), managed.get("MaxInstanceCount", count)
        if managed.get("Status") == "ENABLED" and not low <= count <= high:
            raise ValidationException(
                f"InitialInstanceCount {count} must lie between MinInstanceCount {low} and "
                f"MaxInstanceCount {high}."
            )


def refuse_repeated(variants: Sequence[str]) -> None:
    """Raise ValidationException if a variant's name occurs twice in a request."""
    for name in variants:
        if variants.count(name) > 1:
            raise ValidationException(f'The variant name "{name}" was non-unique within the request.')


def models_of(config: dict[str, Any], region: Region) -> dict[str, dict[str, Any]]:
    """Return the inputs of the variants' models, by name. Raises ValidationException for a missing one."""
    names = [variant["ModelName"] for variant in config["ProductionVariants"] if "ModelName" in variant]
    return {
        name: get_record(region.store.models, name, "model", region.arn("model", name)).spec for name in names
    }


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

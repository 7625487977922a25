"""The operations of inference components, both bases and adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from sagemaker_local.aws.json_service import Handler
from sagemaker_local.aws_errors import ResourceLimitExceeded, ValidationException
from sagemaker_local.resources import instances
from sagemaker_local.resources.adapter_component import AdapterComponent
from sagemaker_local.resources.alarms import AlarmStates
from sagemaker_local.resources.base_component import BaseComponent
from sagemaker_local.resources.collection import Collection
from sagemaker_local.resources.hosting import Hosting
from sagemaker_local.resources.pools import pool_types, specification_for
from sagemaker_local.resources.records import COMPONENT, ENDPOINT, ComponentRecord, EndpointRecord
from sagemaker_local.resources.specification import (
    base_specification,
    demand_adapter,
    merged,
    specification_summaries,
)
from sagemaker_local.resources.store import Region, tags

BUSY: Final = frozenset({"Creating", "Updating", "Deleting"})


class Components(Collection[ComponentRecord]):
    """CreateInferenceComponent and related operations."""

    def __init__(self, region: Region, hosting: Hosting, alarms: AlarmStates) -> None:
        super().__init__(region, COMPONENT, region.store.components)
        self._hosting, self._alarms = hosting, alarms
        self.bases: dict[str, BaseComponent] = {}
        self.adapters: dict[str, AdapterComponent] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}

    @property
    def operations(self) -> dict[str, Handler]:
        return super().operations | {
            "UpdateInferenceComponent": self.update,
            "UpdateInferenceComponentRuntimeConfig": self.update_runtime,
        }

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name, arn = self._new_name(request)
        endpoint = self._endpoint(request["EndpointName"])
        self._refuse_over_quota(endpoint)
        now = self._region.clock.now()
        given = tags(request)
        if request.get("Specification", {}).get("BaseInferenceComponentName"):
            spec, base = demand_adapter(request), self._base(request, endpoint)
            record = ComponentRecord(
                name, arn, spec, now, now, "Creating", "", given, endpoint.name, base.variant, base.name
            )
        else:
            variant = self._variant(request, endpoint)
            spec = base_specification(request, pool_types(variant), self._region)
            self._fits(spec, pool_types(variant))
            copies = request.get("RuntimeConfig", {}).get("CopyCount", 1)
            where = endpoint.name, variant["VariantName"]
            record = ComponentRecord(name, arn, spec, now, now, "Creating", "", given, *where, "", copies)
        answer = self._add(record)
        self.revive(record)
        return answer

    def revive(self, record: ComponentRecord) -> None:
        """Start a component's life cycle, when it is created or the server restarts."""
        if record.base:
            adapter = AdapterComponent(self._region, record, self.bases[record.base].fleet)
            self.adapters[record.name] = adapter
            self._live(record, adapter.create())
        else:
            base = BaseComponent(self._region, self._hosting, self._alarms, record)
            self.bases[record.name] = base
            self._live(record, base.create())

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._get(request)
        answer = {**self._summary(record), **specification_summaries(record)}
        if not record.base:
            base = self.bases[record.name]
            current = len(base.fleet.serving)
            counts = base.copies_by_type(self._instance_types(record))
            placement = {
                "PlacementStatus": [
                    {"InstanceType": kind, "CurrentCopyCount": count}
                    for kind, count in counts.items()
                    if count
                ]
            }
            total = {"DesiredCopyCount": record.desired, "CurrentCopyCount": current}
            answer["RuntimeConfig"] = total | (placement if current else {})
        if record.failure:
            answer["FailureReason"] = record.failure
        if record.deployment:
            answer["LastDeploymentConfig"] = record.deployment
        return answer

    def _summary(self, record: ComponentRecord) -> dict[str, Any]:
        return super()._summary(record) | {
            "EndpointArn": self._region.arn(ENDPOINT, record.endpoint),
            "EndpointName": record.endpoint,
            "VariantName": record.variant,
            "InferenceComponentStatus": record.status,
            "LastModifiedTime": record.modified,
        }

    async def update(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._idle(request)
        if record.base:
            if set(request) - {"InferenceComponentName", "Specification"}:
                raise ValidationException(
                    "Of an adapter inference component only Container.ArtifactUrl changes."
                )
            spec = demand_adapter({"Specification": merged(record.spec, request.get("Specification", {}))})
            if spec["BaseInferenceComponentName"] != record.base:
                raise ValidationException("The base of an adapter inference component cannot change.")
            self._region.touch(record, "Updating")
            self._live(record, self.adapters[record.name].replace(spec))
            return {"InferenceComponentArn": record.arn}
        base = self.bases[record.name]
        copies = request.get("RuntimeConfig", {}).get("CopyCount", record.desired)
        if "Specification" not in request and "Specifications" not in request:
            return self._scale(record, copies)
        types = self._instance_types(record)
        spec = base_specification(request, types, self._region, record.spec)
        self._fits(spec, types)
        deployment = request.get("DeploymentConfig")
        record.desired = copies
        failed = record.status == "Failed"
        self._region.touch(record, "Updating")
        if failed:
            record.spec = spec
            self._live(record, base.create())
        else:
            self._live(record, base.roll(spec, deployment))
        return {"InferenceComponentArn": record.arn}

    async def update_runtime(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._idle(request)
        if record.base:
            raise ValidationException(
                "An adapter inference component has no copies of its own: scale its base."
            )
        return self._scale(record, request["DesiredRuntimeConfig"]["CopyCount"])

    async def delete(self, request: dict[str, Any]) -> None:
        record = self._get(request)
        if record.status == "Deleting":
            raise ValidationException(f'Cannot update in-progress inference component "{record.arn}".')
        if adapters := [item.name for item in self._records.values() if item.base == record.name]:
            raise ValidationException(
                f'Inference component "{record.arn}" is the base of {adapters[0]}: delete its adapters first,'
                " and wait until ListInferenceComponents no longer lists them."
            )
        self._region.touch(record, "Deleting")
        if (life := self._lives.pop(record.name, None)) is not None:
            life.cancel()
        self._region.spawn(self._remove(record, life))

    async def close(self) -> None:
        """End all processes; records stay."""
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)
        await asyncio.gather(*(base.close(drain=False) for base in self.bases.values()))

    async def _remove(self, record: ComponentRecord, life: asyncio.Task[None] | None) -> None:
        if life is not None:
            # The task may be starting a copy, and ends that copy before it ends itself.
            await asyncio.gather(life, return_exceptions=True)
        await self._region.clock.sleep(self._region.config.durations.deleting)
        owner = self.adapters.get(record.name) or self.bases[record.name]
        await owner.close(drain=True)
        del self._records[record.name]
        self.adapters.pop(record.name, None)
        self.bases.pop(record.name, None)
        self._region.changed()

    def _refuse_over_quota(self, endpoint: EndpointRecord) -> None:
        """Raise ResourceLimitExceeded if the quota is reached; components being deleted still count."""
        quota = self._region.config.component_quota
        there = sum(item.endpoint == endpoint.name for item in self._records.values())
        if quota is not None and there >= quota:
            raise ResourceLimitExceeded(
                f"The account-level service limit 'Number of inference components per endpoint' is {quota} "
                f"Components, with current utilization of {there} Components and a request delta of 1 "
                "Components. Please use AWS Service Quotas to request an increase for this quota."
            )

    def _scale(self, record: ComponentRecord, copies: int) -> dict[str, Any]:
        record.desired = copies
        self._region.touch(record, "Updating")
        self._live(record, self.bases[record.name].scale())
        return {"InferenceComponentArn": record.arn}

    def _live(self, record: ComponentRecord, life: Coroutine[Any, Any, None]) -> None:
        async def live() -> None:
            try:
                await life
            except Exception as error:
                # A failure must not leave a component Creating or Updating.
                self._region.touch(record, "Failed", f"The local SageMaker failed: {error!r}")
                raise

        self._lives[record.name] = self._region.spawn(live())

    def _endpoint(self, name: str) -> EndpointRecord:
        record = self._region.get(self._region.store.endpoints, ENDPOINT, name)
        if record.status not in ("InService", "Updating", "SystemUpdating", "RollingBack"):
            raise ValidationException(f'Endpoint "{record.arn}" is {record.status}, not InService.')
        return record

    def _variant(self, request: dict[str, Any], endpoint: EndpointRecord) -> dict[str, Any]:
        if (name := request.get("VariantName")) is None:
            raise ValidationException("VariantName is required for an inference component without a base.")
        for variant in endpoint.variants:
            if variant["VariantName"] == name:
                if "ModelName" in variant:
                    raise ValidationException(
                        f"Variant {name} has a model and takes no inference components."
                    )
                return variant
        raise ValidationException(f'Could not find variant {name} on endpoint "{endpoint.arn}".')

    def _base(self, request: dict[str, Any], endpoint: EndpointRecord) -> ComponentRecord:
        name = request["Specification"]["BaseInferenceComponentName"]
        base = self._region.get(self._records, COMPONENT, name)
        if base.endpoint != endpoint.name:
            raise ValidationException(f"Base inference component {base.name} is on endpoint {base.endpoint}.")
        if base.base:
            raise ValidationException(f"{base.name} is an adapter and cannot be the base of another.")
        if base.status not in ("InService", "Updating"):
            raise ValidationException(
                f"Base inference component {base.name} is {base.status}, not InService."
            )
        if request.get("VariantName", base.variant) != base.variant:
            raise ValidationException(f"Base inference component {base.name} is on variant {base.variant}.")
        return base

    def _fits(self, spec: dict[str, Any], types: list[str]) -> None:
        """Raise ValidationException for a copy that no instance of a type can hold."""
        for kind in types:
            size = instances.size(kind, self._region.config.instance_types)
            needs = specification_for(spec, kind)["ComputeResourceRequirements"]
            if not instances.Instance(size).fits(instances.need(needs)):
                raise ValidationException(
                    f"The ComputeResourceRequirements of one copy exceed what {kind} has: {size}."
                )

    def _instance_types(self, record: ComponentRecord) -> list[str]:
        endpoint = self._region.store.endpoints[record.endpoint]
        types = {variant["VariantName"]: pool_types(variant) for variant in endpoint.variants}
        return types[record.variant]

    def _idle(self, request: dict[str, Any]) -> ComponentRecord:
        record = self._get(request)
        if record.status in BUSY:
            raise ValidationException(f'Cannot update in-progress inference component "{record.arn}".')
        return record

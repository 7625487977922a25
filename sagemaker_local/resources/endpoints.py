"""Endpoints: their operations and their state changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from sagemaker_local.aws.json_service import Handler
from sagemaker_local.aws_errors import ResourceLimitExceeded, ValidationException
from sagemaker_local.resources.alarms import AlarmStates
from sagemaker_local.resources.collection import Collection
from sagemaker_local.resources.hosting import Hosting
from sagemaker_local.resources.models import models_of, refuse_repeated
from sagemaker_local.resources.pools import pool_types
from sagemaker_local.resources.records import ENDPOINT, ENDPOINT_CONFIG, ComponentRecord, EndpointRecord
from sagemaker_local.resources.store import Region, tags

BUSY: Final = frozenset({"Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting"})


class Endpoints(Collection[EndpointRecord]):
    """CreateEndpoint and related operations.

    Creating -> InService | Failed. Updating -> InService, by RollingBack if the new configuration does not
    start or an alarm of the deployment fires. Deleting -> removed.
    """

    def __init__(self, region: Region, hosting: Hosting, alarms: AlarmStates) -> None:
        super().__init__(region, ENDPOINT, region.store.endpoints)
        self._hosting, self._alarms = hosting, alarms

    @property
    def operations(self) -> dict[str, Handler]:
        return super().operations | {
            "UpdateEndpoint": self.update,
            "UpdateEndpointWeightsAndCapacities": self.update_capacities,
        }

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name, arn = self._new_name(request)
        config = self._config(request["EndpointConfigName"])
        models, desired = models_of(config, self._region), _desired(config)
        self._refuse_over_quota(config, desired, None)
        now = self._region.clock.now()
        record = EndpointRecord(
            name,
            arn,
            request,
            now,
            now,
            "Creating",
            tags=tags(request),
            config=config,
            models=models,
            desired=desired,
        )
        answer = self._add(record)
        self._region.spawn(self.bring_up(record))
        return answer

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._get(request)
        shown = {
            **self._summary(record),
            "EndpointConfigName": record.config["EndpointConfigName"],
            "ProductionVariants": [self._variant(record, variant) for variant in record.variants],
        }
        if "MetricsConfig" in record.config:
            shown["MetricsConfig"] = record.config["MetricsConfig"]
        if record.failure:
            shown["FailureReason"] = record.failure
        if "DeploymentConfig" in record.spec:
            shown["LastDeploymentConfig"] = record.spec["DeploymentConfig"]
        if record.pending:
            shown["PendingDeploymentSummary"] = {"EndpointConfigName": record.pending}
        if record.status == "Creating":
            # Until then nothing is in production.
            del shown["ProductionVariants"]
        return shown

    def _summary(self, record: EndpointRecord) -> dict[str, Any]:
        state = {"LastModifiedTime": record.modified, "EndpointStatus": record.status}
        return super()._summary(record) | state

    async def update(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._idle(request)
        config = self._config(request["EndpointConfigName"])
        models, desired = models_of(config, self._region), _desired(config)
        if request.get("RetainAllVariantProperties"):
            kept = {
                item["VariantPropertyType"] for item in request.get("ExcludeRetainedVariantProperties", [])
            }
            for name in desired.keys() & record.desired.keys():
                for property_name, field in (("DesiredWeight", "weight"), ("DesiredInstanceCount", "count")):
                    if property_name not in kept:
                        desired[name][field] = record.desired[name][field]
        inhabited = {item.variant for item in self._components(record.name)}
        if missing := inhabited - set(desired):
            raise ValidationException(
                f"Variants {sorted(missing)} have inference components and must remain."
            )
        self._refuse_other_types(config, record)
        self._refuse_over_quota(config, desired, record)
        record.spec = {**record.spec, **request}
        record.pending = config["EndpointConfigName"]
        self._region.touch(record, "Updating")
        self._region.spawn(self._replace(record, config, models, desired))
        return {"EndpointArn": record.arn}

    async def update_capacities(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._idle(request)
        desired = {name: dict(values) for name, values in record.desired.items()}
        changes = request["DesiredWeightsAndCapacities"]
        refuse_repeated([change["VariantName"] for change in changes])
        if unknown := [name for change in changes if (name := change["VariantName"]) not in desired]:
            raise ValidationException(
                f'The variant name(s) "{", ".join(unknown)}" is/are not present within endpoint '
                f'configuration "{record.config["EndpointConfigName"]}".'
            )
        for change in changes:
            values = desired[change["VariantName"]]
            values["weight"] = change.get("DesiredWeight", values["weight"])
            values["count"] = change.get("DesiredInstanceCount", values["count"])
        self._refuse_over_quota(record.config, desired, record)
        self._region.touch(record, "Updating")
        self._region.spawn(self._replace(record, record.config, record.models, desired))
        return {"EndpointArn": record.arn}

    async def delete(self, request: dict[str, Any]) -> None:
        record = self._get(request)
        if record.status in BUSY:
            raise ValidationException(f'Cannot update in-progress endpoint "{record.arn}".')
        if components := self._components(record.name):
            raise ValidationException(f'Endpoint "{record.arn}" {_remedy(components)}')
        self._region.touch(record, "Deleting")
        self._region.spawn(self._remove(record))

    async def bring_up(self, record: EndpointRecord) -> None:
        """Creating -> InService, or Failed with the reason."""
        await self._region.clock.sleep(self._region.config.durations.endpoint)
        reason = await self._hosting.open(record.name, record.config, record.models, record.desired)
        self._region.touch(record, "Failed" if reason else "InService", reason)

    async def _replace(
        self,
        record: EndpointRecord,
        config: dict[str, Any],
        models: dict[str, dict[str, Any]],
        desired: dict[str, dict[str, float]],
    ) -> None:
        """Switch traffic to the new fleet once all of it serves, and keep it unless an alarm fires."""
        await self._region.clock.sleep(self._region.config.durations.endpoint)
        old = record.config, record.models, record.desired
        reason = await self._hosting.open(record.name, config, models, desired)
        if not reason:
            record.config, record.models, record.desired = config, models, desired
            reason = await self._alarms.watch(record.spec.get("DeploymentConfig"))
        if reason:
            self._region.touch(record, "RollingBack", reason)
            await self._region.clock.sleep(self._region.config.durations.endpoint)
            record.config, record.models, record.desired = old
            again = await self._hosting.open(record.name, *old)
            if again:
                record.pending = ""
                self._region.touch(record, "UpdateRollbackFailed", again)
                return
        record.pending = ""
        self._region.touch(record, "InService", reason)

    async def _remove(self, record: EndpointRecord) -> None:
        await asyncio.gather(
            self._region.clock.sleep(self._region.config.durations.deleting), self._hosting.close(record.name)
        )
        del self._records[record.name]
        self._region.changed()

    def _variant(self, record: EndpointRecord, variant: dict[str, Any]) -> dict[str, Any]:
        name = variant["VariantName"]
        desired = record.desired[name]
        there, asked_for = self._hosting.instances(record.name, name)
        managed = variant.get("ManagedInstanceScaling", {}).get("Status") == "ENABLED"
        passed = ("ManagedInstanceScaling", "RoutingConfig")
        return {
            "VariantName": name,
            "CurrentWeight": desired["weight"],
            "DesiredWeight": desired["weight"],
            "CurrentInstanceCount": there,
            "DesiredInstanceCount": asked_for if managed else int(desired["count"]),
            **{key: variant[key] for key in passed if key in variant},
            **self._pools(record, variant),
        }

    def _pools(self, record: EndpointRecord, variant: dict[str, Any]) -> dict[str, Any]:
        """Return the running instances by type, of a variant with pools."""
        if "InstancePools" not in variant:
            return {}
        count = self._hosting.capacity(record.name, variant["VariantName"]).count
        summary = [
            {"InstanceType": kind, "CurrentInstanceCount": count(kind, running=True)}
            for kind in pool_types(variant)
        ]
        return {"InstancePools": summary}

    def _refuse_other_types(self, config: dict[str, Any], record: EndpointRecord) -> None:
        """Raise ValidationException for other instance types of a variant that is a scalable target."""
        old = {variant["VariantName"]: pool_types(variant) for variant in record.variants}
        targets = self._region.store.scaling.get("targets", {}).values()
        scaled = {target["ResourceId"] for target in targets}
        for variant in config["ProductionVariants"]:
            name = variant["VariantName"]
            resource = f"endpoint/{record.name}/variant/{name}"
            if resource in scaled and old.get(name) != pool_types(variant):
                raise ValidationException(
                    f'The variant(s) "[{name}]" must be deregistered as scalable targets with AWS Auto '
                    "Scaling before they can be removed or have their instance type updated."
                )

    def _refuse_over_quota(
        self, config: dict[str, Any], desired: dict[str, dict[str, float]], mine: EndpointRecord | None
    ) -> None:
        """Raise ResourceLimitExceeded in SageMaker's words if a quota is exceeded."""
        quotas = self._region.config.quotas
        others = [item for item in self._records.values() if item is not mine]
        for kind in {pool_types(variant)[0] for variant in config["ProductionVariants"]}:
            quota = quotas.get(kind, quotas.get("*"))
            used = sum(_count(item.config, item.desired, kind) for item in others)
            asked = _count(config, desired, kind)
            if quota is not None and used + asked > quota:
                raise ResourceLimitExceeded(
                    f"The account-level service limit '{kind} for endpoint usage' is {quota} Instances, with "
                    f"current utilization of {used} Instances and a request delta of {asked} Instances. "
                    "Please use AWS Service Quotas to request an increase for this quota."
                )

    def _components(self, endpoint: str) -> list[Any]:
        return [item for item in self._region.store.components.values() if item.endpoint == endpoint]

    def _config(self, name: str) -> dict[str, Any]:
        return self._region.get(self._region.store.configs, ENDPOINT_CONFIG, name).spec

    def _idle(self, request: dict[str, Any]) -> EndpointRecord:
        record = self._get(request)
        if record.status in BUSY:
            raise ValidationException(f'Cannot update in-progress endpoint "{record.arn}".')
        return record


def _desired(config: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {
        variant["VariantName"]: {
            "weight": variant.get("InitialVariantWeight", 1.0),
            "count": variant.get("InitialInstanceCount", 1),
        }
        for variant in config["ProductionVariants"]
    }


def _count(config: dict[str, Any], desired: dict[str, dict[str, float]], kind: str) -> int:
    return sum(
        int(desired[variant["VariantName"]]["count"])
        for variant in config["ProductionVariants"]
        if pool_types(variant)[0] == kind
    )


def _remedy(components: Sequence[ComponentRecord]) -> str:
    """Return what an endpoint's deletion waits for; a component is deleted once its copies have ended."""
    left = [item.name for item in components if item.status != "Deleting"]
    if left:
        return (
            f"has inference components: delete {', '.join(left)} first, and wait until"
            " ListInferenceComponents no longer lists them."
        )
    names = ", ".join(item.name for item in components)
    return (
        f"has inference components that are being deleted, {names}: wait until ListInferenceComponents no"
        " longer lists them, then delete the endpoint."
    )

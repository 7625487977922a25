"""Scalable resources: copies of an inference component, instances of a variant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sagemaker_local.aws_errors import ApiError, ValidationException
from sagemaker_local.resources.components import Components
from sagemaker_local.resources.endpoints import Endpoints
from sagemaker_local.resources.store import Region

COPIES: Final = "sagemaker:inference-component:DesiredCopyCount"
INSTANCES: Final = "sagemaker:variant:DesiredInstanceCount"


@dataclass(frozen=True, slots=True)
class Scalable:
    """A resource by the id and dimension of a scalable target."""

    resource_id: str
    dimension: str

    @property
    def key(self) -> str:
        return f"{self.resource_id}|{self.dimension}"

    @property
    def component(self) -> str:
        """The inference component's name; "" for a variant."""
        return self.resource_id.removeprefix("inference-component/") if self.dimension == COPIES else ""

    @property
    def variant(self) -> str:
        """The variant as `endpoint/variant`; "" for a component."""
        parts = [*self.resource_id.split("/"), "", "", ""]
        return f"{parts[1]}/{parts[3]}" if self.dimension == INSTANCES else ""


class Resources:
    """Reads and sets capacities by the operations that customers call."""

    def __init__(self, region: Region, components: Components, endpoints: Endpoints) -> None:
        self._store, self._components, self._endpoints = region.store, components, endpoints

    def check(self, scalable: Scalable) -> None:
        """Raise ValidationException if the resource does not exist or cannot be scaled."""
        parts = scalable.resource_id.split("/")
        of_component = scalable.dimension == COPIES and len(parts) == 2 and parts[0] == "inference-component"
        of_variant = scalable.dimension == INSTANCES and [*parts, "", "", ""][0:3:2] == [
            "endpoint",
            "variant",
        ]
        if not of_component and not of_variant:
            raise ValidationException(
                f"Unsupported resource {scalable.resource_id} for {scalable.dimension}: the local "
                "SageMaker scales inference-component/NAME and endpoint/NAME/variant/NAME"
            )
        if self.desired(scalable) is None:
            raise ValidationException(f"Resource {scalable.resource_id} was not found.")

    def desired(self, scalable: Scalable) -> int | None:
        """Return the desired capacity; None if the resource does not exist, or is an adapter."""
        if name := scalable.component:
            component = self._store.components.get(name)
            return None if component is None or component.base else component.desired
        endpoint, variant = self._variant(scalable)
        record = self._store.endpoints.get(endpoint)
        values = None if record is None else record.desired.get(variant)
        return None if values is None else int(values["count"])

    def fulfilled(self, scalable: Scalable) -> bool:
        """Return True if the running capacity is the desired one."""
        if name := scalable.component:
            component = self._store.components.get(name)
            return component is not None and (component.status, component.current) == (
                "InService",
                component.desired,
            )
        record = self._store.endpoints.get(self._variant(scalable)[0])
        return record is not None and record.status == "InService"

    async def set(self, scalable: Scalable, capacity: int) -> str:
        """Set the capacity; return "" or the reason why it cannot be set now."""
        try:
            if name := scalable.component:
                config = {"CopyCount": capacity}
                await self._components.update_runtime(
                    {"InferenceComponentName": name, "DesiredRuntimeConfig": config}
                )
            else:
                endpoint, variant = self._variant(scalable)
                change = {"VariantName": variant, "DesiredInstanceCount": capacity}
                await self._endpoints.update_capacities(
                    {"EndpointName": endpoint, "DesiredWeightsAndCapacities": [change]}
                )
        except ApiError as error:
            return error.message
        return ""

    def _variant(self, scalable: Scalable) -> tuple[str, str]:
        parts = [*scalable.resource_id.split("/"), "", "", ""]
        return parts[1], parts[3]

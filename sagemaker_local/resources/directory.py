"""Resolves the copy that serves an invocation, and counts invocations without one."""

from __future__ import annotations

from sagemaker_local.errors import ValidationError
from sagemaker_local.resources.components import Components
from sagemaker_local.resources.hosting import Hosting
from sagemaker_local.resources.store import Region
from sagemaker_local.state import ACCOUNT_ID, NEEDS_COMPONENT, NO_CAPACITY, Target, unknown_variant
from sagemaker_local.traffic import Traffic

_SERVING = frozenset({"InService", "Updating", "SystemUpdating", "RollingBack"})


class Directory:
    """The control plane's endpoints, for the runtime (`state.Resolver`)."""

    def __init__(self, region: Region, hosting: Hosting, components: Components, traffic: Traffic) -> None:
        self._region, self._hosting, self._components, self._traffic = region, hosting, components, traffic

    def resolve(self, endpoint: str, component: str | None, variant: str | None) -> Target | None:
        """Return the target; None for an unknown endpoint. Raises ValidationError in SageMaker's words."""
        record = self._region.store.endpoints.get(endpoint)
        if record is None or record.status not in _SERVING:
            return None
        if component is not None:
            return self._component(endpoint, component)
        if not any("ModelName" in item for item in record.variants):
            raise ValidationError(NEEDS_COMPONENT)
        if variant is not None and variant not in record.desired:
            raise unknown_variant(variant, endpoint)
        target = self._hosting.model_target(endpoint, variant)
        if target is None:
            raise ValidationError(f"Variant {variant or ''} of endpoint {endpoint} has nothing that serves.")
        self._traffic.invoked(f"{endpoint}/{target.variant}", "")
        return target

    def _component(self, endpoint: str, name: str) -> Target:
        record = self._region.store.components.get(name)
        if record is None or record.endpoint != endpoint:
            raise ValidationError(f"Inference Component {name} of account {ACCOUNT_ID} not found.")
        base = self._components.bases.get(record.base or name)
        loaded = not record.base or (base is not None and name in base.fleet.adapters)
        target = base.fleet.target(name if record.base else "") if base is not None and loaded else None
        if target is None:
            self._traffic.no_capacity(record.base or name)
            raise ValidationError(NO_CAPACITY)
        self._traffic.invoked(name, record.base)
        return Target(target.container, target.adapter, record.variant, target.load)

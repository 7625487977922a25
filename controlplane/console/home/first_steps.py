"""A new tenant's checklist to its first answer, by the current state."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.adapters.selectors import adapter_callable_names, adapter_list
from controlplane.catalog.selectors import base_model_list
from controlplane.metering.selectors import usage_exists
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import api_key_can_infer

_NEWEST_KEYS = 100
"""Most keys to check: a tenant with more needs no checklist, and its page reads no thousands of rows."""


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """Each step's state, and the model for the last step; '' if there is none yet."""

    key: bool
    registered: bool
    ready: bool
    request: bool
    model: str

    @property
    def done(self) -> bool:
        return self.key and self.registered and self.ready and self.request


def first_steps_of(tenant: Tenant) -> FirstSteps:
    """Return the tenant's progress."""
    ready = adapter_callable_names(tenant=tenant).first()
    registered = ready is not None or adapter_list(tenant=tenant).exists()
    base = None if ready else base_model_list().first()
    return FirstSteps(
        api_key_can_infer(tenant=tenant, newest=_NEWEST_KEYS),
        registered,
        ready is not None,
        usage_exists(tenant=tenant.pk),
        ready or (base.name if base else ""),
    )

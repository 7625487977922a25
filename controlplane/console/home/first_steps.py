"""A new tenant's way to its first answer: which steps are done, by what there is."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.adapters.selectors import adapter_callable, adapter_list
from controlplane.catalog.selectors import base_model_list
from controlplane.metering.models import UsageRollup
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.selectors import api_key_list

_TELLING = ("scopes", "revoked_at", "expires_at")
"""Columns that say whether a key calls models."""
_NEWEST_KEYS = 100
"""Looked at for one that does: a tenant with more knows the way, and its page reads no thousands of rows."""


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """Each step's state, and the model that the last one calls; '' where there is none yet."""

    key: bool
    registered: bool
    ready: bool
    request: bool
    model: str

    @property
    def done(self) -> bool:
        return self.key and self.registered and self.ready and self.request


def first_steps_of(tenant: Tenant) -> FirstSteps:
    """What the tenant has now."""
    callables = adapter_callable(tenant=tenant).prefetch_related(None)
    ready: str | None = callables.values_list("name", flat=True).first()
    registered = ready is not None or adapter_list(tenant=tenant).exists()
    base = None if ready else base_model_list().first()
    return FirstSteps(
        _has_key(tenant),
        registered,
        ready is not None,
        # Sums outlive events; one row is enough.
        UsageRollup.objects.filter(tenant=tenant.pk).exists(),
        ready or (base.name if base else ""),
    )


def _has_key(tenant: Tenant) -> bool:
    """Whether an application could call models by now with one of the newest keys."""
    keys = api_key_list(tenant=tenant).exclude(name=ApiKey.PLAYGROUND).only(*_TELLING).select_related(None)
    return any(key.is_live and ApiKey.Scope.INFERENCE in key.scopes for key in keys[:_NEWEST_KEYS])

"""A new tenant's checklist to its first answer, by the current state."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.adapters.selectors import adapter_callable, adapter_list
from controlplane.catalog.selectors import base_model_list
from controlplane.metering.models import UsageRollup
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.selectors import api_key_list

_TELLING = ("scopes", "revoked_at", "expires_at")
"""Columns that decide if a key can call models."""
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
    callables = adapter_callable(tenant=tenant).prefetch_related(None)
    ready: str | None = callables.values_list("name", flat=True).first()
    registered = ready is not None or adapter_list(tenant=tenant).exists()
    base = None if ready else base_model_list().first()
    return FirstSteps(
        _has_key(tenant),
        registered,
        ready is not None,
        # Rollups outlive events, and one row is enough.
        UsageRollup.objects.filter(tenant=tenant.pk).exists(),
        ready or (base.name if base else ""),
    )


def _has_key(tenant: Tenant) -> bool:
    """Return True if one of the newest keys can call models."""
    keys = api_key_list(tenant=tenant).exclude(name=ApiKey.PLAYGROUND).only(*_TELLING).select_related(None)
    return any(key.is_live and ApiKey.Scope.INFERENCE in key.scopes for key in keys[:_NEWEST_KEYS])

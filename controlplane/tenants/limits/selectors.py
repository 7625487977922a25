"""Reads of limits."""

from __future__ import annotations

from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.models import ApiKey, Tenant


def tenant_limits_get(*, tenant: Tenant) -> ScopeLimits:
    """Return the tenant's limits; an unsaved row without limits if none were set."""
    return ScopeLimits.objects.filter(tenant=tenant, api_key=None).first() or ScopeLimits(tenant=tenant)


def key_limits_get(*, api_key: ApiKey) -> ScopeLimits:
    """Return the key's own limits; an unsaved row without limits if none were set."""
    found = ScopeLimits.objects.filter(api_key=api_key).first()
    return found or ScopeLimits(tenant=api_key.tenant, api_key=api_key)


def prepaid_stop_held(*, tenant: str) -> bool:
    """Return the tenant's `prepaid_stop`, locked against changes until this transaction ends.

    Raises TransactionManagementError where there is no transaction.
    """
    limits = ScopeLimits.objects.select_for_update().filter(tenant=tenant, api_key=None).order_by("pk")
    return limits.values_list("prepaid_stop", flat=True).first() is True

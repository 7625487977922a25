"""Reads of limits."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.models import ApiKey, Tenant


def tenant_limits_get(*, tenant: Tenant) -> ScopeLimits:
    """The tenant's own limits; an unsaved row without any when none were set."""
    return ScopeLimits.objects.filter(tenant=tenant, api_key=None).first() or ScopeLimits(tenant=tenant)


def key_limits_get(*, api_key: ApiKey) -> ScopeLimits:
    """The key's own limits; an unsaved row without any when none were set."""
    found = ScopeLimits.objects.filter(api_key=api_key).first()
    return found or ScopeLimits(tenant=api_key.tenant, api_key=api_key)


def limits_prepaid() -> QuerySet[ScopeLimits]:
    """Tenants' whose calls stop when nothing is left of what is prepaid."""
    return ScopeLimits.objects.filter(prepaid_stop=True, api_key=None).order_by("pk")


def prepaid_stop_held(*, tenant: str) -> bool:
    """Whether the tenant's calls stop when nothing is left; nobody changes it until this transaction ends.

    Raises TransactionManagementError where there is no transaction.
    """
    own = ScopeLimits.objects.select_for_update().filter(tenant=tenant, api_key=None).order_by("pk")
    return own.values_list("prepaid_stop", flat=True).first() is True


def limits_not_prepaid() -> QuerySet[ScopeLimits]:
    """Tenants' that have limits, and whose calls go on when nothing is left."""
    return ScopeLimits.objects.filter(prepaid_stop=False, api_key=None).order_by("pk")


def limits_with_budget() -> QuerySet[ScopeLimits]:
    """Every scope that has a budget."""
    return ScopeLimits.objects.exclude(budget_nano=None).order_by("pk")

"""Quotas of adapters, versions and bytes per tenant. Deleted ones count until they are purged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import transaction
from django.db.models import Count, Sum

from controlplane.adapters.models import Adapter, AdapterQuota, AdapterVersion
from controlplane.errors import ConflictError, OutOfRangeError, RefusedError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.tenants.models import Tenant

_MOST: Final = {"adapters": 1_000_000, "versions": 10_000_000, "size_bytes": 1 << 60}


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A tenant's current use. Refused versions do not count, since their files are removed."""

    adapters: int
    versions: int
    size_bytes: int


def quota_get(*, tenant: Tenant) -> AdapterQuota:
    """Return the tenant's quota, or an unsaved unlimited one if none was set."""
    return AdapterQuota.objects.filter(tenant=tenant).first() or AdapterQuota(tenant=tenant)


def quota_use(*, tenant: Tenant) -> QuotaUse:
    """Count the tenant's adapters, versions and bytes."""
    versions = AdapterVersion.objects.filter(adapter__tenant=tenant).exclude(
        status=AdapterVersion.Status.REFUSED
    )
    totals = versions.aggregate(count=Count("*"), total=Sum("size_bytes"))
    return QuotaUse(Adapter.objects.filter(tenant=tenant).count(), totals["count"], totals["total"] or 0)


@transaction.atomic
def quota_set(*, tenant: Tenant, **values: int | None) -> AdapterQuota:
    """Replace the tenant's quota by `values` (AdapterQuota.FIELDS); omitted fields are unlimited.

    Use above the quota stays, but nothing can be added until it is below.

    Raises:
        InvalidInputError: a value is out of its bounds.
    """
    for name, value in values.items():
        if name not in _MOST or (value is not None and not 0 <= value <= _MOST[name]):
            most = _MOST.get(name, 0)
            text = f"{name} must be from 0 to {most}, or null for no limit"
            raise OutOfRangeError(text, field=name, low=0, high=most)
    quota = _locked(tenant)
    before = snapshot(quota)
    for name in AdapterQuota.FIELDS:
        setattr(quota, name, values.get(name))
    quota.save()
    audit_record(
        tenant=tenant.pk, action="adapter_quota.set", target=quota, before=before, after=snapshot(quota)
    )
    return quota


def quota_check_registration(*, tenant: Tenant, name: str, adding: int = 0) -> None:
    """Check that the quota has room for one more version of adapter `name`, and lock the quota for this
    transaction.

    Args:
        adding: bytes of the version's files; 0 if unknown.

    Raises:
        ConflictError: a limit is reached; the text has the figures.
    """
    quota = _locked(tenant)
    use = quota_use(tenant=tenant)
    is_new = not Adapter.objects.filter(tenant=tenant, name=name).exists()
    if is_new and quota.adapters is not None and use.adapters >= quota.adapters:
        raise ConflictError(_full(_counted(quota.adapters, "adapter"), f"has {use.adapters}"))
    if quota.versions is not None and use.versions >= quota.versions:
        raise ConflictError(_full(_counted(quota.versions, "version"), f"has {use.versions}"))
    if quota.size_bytes is not None and use.size_bytes + max(1, adding) > quota.size_bytes:
        have = f"has {use.size_bytes}" + (f", and this version has {adding}" if adding else "")
        raise ConflictError(_full(f"{_counted(quota.size_bytes, 'byte')} of adapters", have))


def quota_check_bytes(*, version: AdapterVersion, adding: int) -> None:
    """Check that `version` may store `adding` bytes, and lock the quota for this transaction.

    Raises:
        RefusedError: the bytes exceed the quota; the text has the figures.
    """
    tenant = version.adapter.tenant
    quota = _locked(tenant)
    # An earlier attempt may have saved this version's size already: do not count it twice.
    own = AdapterVersion.objects.filter(pk=version.pk).values_list("size_bytes", flat=True).first() or 0
    used = quota_use(tenant=tenant).size_bytes - own
    if quota.size_bytes is not None and used + adding > quota.size_bytes:
        have = f"has {used}, and this version has {adding}"
        raise RefusedError(_full(f"{_counted(quota.size_bytes, 'byte')} of adapters", have))


def _locked(tenant: Tenant) -> AdapterQuota:
    """Return the tenant's locked row, so that concurrent registrations count each other."""
    AdapterQuota.objects.get_or_create(tenant=tenant)
    return AdapterQuota.objects.select_for_update().get(tenant=tenant)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _full(most: str, have: str) -> str:
    return (
        f"the tenant may keep {most} and {have}: delete and purge unused versions, or ask your operator"
        " for a larger quota"
    )

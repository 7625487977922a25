"""Checks that the tenants and base models that events name exist."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.catalog.models import BaseModel
from controlplane.metering.event_rows import EventRow
from controlplane.metering.models import UsageRollup
from controlplane.platform.audit.models import AuditChain
from controlplane.tenants.models import Tenant


def reasons_unknown(rows: Sequence[EventRow]) -> list[str]:
    """Return, for each row, why it cannot be billed; "" if its names are known. Usually two queries.

    A purged tenant is known by its audit log's chain, which stays, even if this is its first usage. The chain
    of "" is the platform's own and bills nobody. Adapters are not checked: their versions are deleted, and
    their usage stays.
    """
    tenants = _unknown_tenants({row.tenant for row in rows})
    named = {row.base_model for row in rows}
    bases = named - set(BaseModel.objects.filter(name__in=named).values_list("name", flat=True))
    if not tenants and not bases:
        return [""] * len(rows)
    return [_reason(row, tenants, bases) for row in rows]


def _unknown_tenants(named: set[str]) -> set[str]:
    """Return the names that no tenant has or had; a purged tenant is known by its audit log or usage."""
    unknown = named - set(Tenant.objects.filter(pk__in=named).values_list("pk", flat=True))
    if purged := unknown - {""}:
        unknown -= set(AuditChain.objects.filter(tenant__in=purged).values_list("tenant", flat=True))
        sums = UsageRollup.objects.filter(tenant__in=purged).order_by()
        unknown -= set(sums.values_list("tenant", flat=True).distinct())
    return unknown


def _reason(row: EventRow, tenants: set[str], bases: set[str]) -> str:
    if row.tenant in tenants:
        return f"there is no tenant {row.tenant[:64]!r}: replay it after creating it"
    if row.base_model in bases:
        return f"there is no base model {row.base_model[:64]!r}: replay it after creating it"
    return ""

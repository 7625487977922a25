"""Suspends and resumes tenants: gateways refuse a suspended tenant's calls, but nothing is deleted."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from contracts.route_table import TenantRoute
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.routes.services import route_set
from controlplane.tenants.models import Tenant

LONGEST_REASON = 500


def tenant_route_publish(*, tenant: Tenant) -> None:
    """Publish the tenant's row to the gateways."""
    entry = TenantRoute(
        tenant.name,
        tenant.cache_salt,
        suspended=tenant.suspended_at is not None,
        prompt_key=tenant.prompt_key,
    )
    route_set(path=f"tenants/{tenant.pk}", entry=entry)


@transaction.atomic
def tenant_suspend(*, tenant: Tenant, reason: str) -> Tenant:
    """Suspend the tenant: gateways refuse all calls of its keys; its pages and REST API keep working.

    Running requests finish. Hosting time is still billed, since its adapters stay on the copies.

    Args:
        reason: shown to the tenant's members on each page.

    Raises:
        InvalidInputError: no reason, or more than LONGEST_REASON characters.
        ConflictError: it is suspended already, or to be deleted.
    """
    reason = reason.strip()
    if not reason:
        raise InvalidInputError("reason is required: the tenant's members can read it", field="reason")
    if len(reason) > LONGEST_REASON:
        raise InvalidInputError(f"reason must have at most {LONGEST_REASON} characters", field="reason")
    # The condition in the UPDATE makes the second of two concurrent suspensions or deletions fail.
    active = Tenant.objects.filter(pk=tenant.pk, suspended_at=None, disabled_at=None)
    if not active.update(suspended_at=timezone.now(), suspended_reason=reason):
        raise ConflictError(f"tenant {tenant.pk} is already suspended or scheduled for deletion")
    tenant.refresh_from_db()
    tenant_route_publish(tenant=tenant)
    audit_record(tenant=tenant.pk, action="tenant.suspend", target=tenant, after=_audit_values(tenant))
    return tenant


@transaction.atomic
def tenant_resume(*, tenant: Tenant) -> Tenant:
    """End the suspension, effective within a second.

    Raises:
        ConflictError: it is not suspended, or to be deleted.
    """
    # NO KEY: a concurrent INSERT for the tenant holds a key share lock, and may wait for locks held here.
    row = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    if row.suspended_at is None:
        raise ConflictError(f"tenant {row.pk} is not suspended")
    if row.disabled_at is not None:
        raise ConflictError(f"tenant {row.pk} is scheduled for deletion: cancel the deletion first")
    before = _audit_values(row)
    row.suspended_at, row.suspended_reason = None, ""
    row.save(update_fields=["suspended_at", "suspended_reason"])
    tenant_route_publish(tenant=row)
    audit_record(tenant=row.pk, action="tenant.resume", target=row, before=before, after=_audit_values(row))
    return row


def _audit_values(tenant: Tenant) -> dict[str, object]:
    return {"suspended_at": tenant.suspended_at, "reason": tenant.suspended_reason}

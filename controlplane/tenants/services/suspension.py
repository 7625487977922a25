"""Suspending a tenant: gateways refuse its calls within a second, and everything of it stays as it is."""

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
    """Tells gateways of the tenant as its row is."""
    entry = TenantRoute(
        tenant.name,
        tenant.cache_salt,
        suspended=tenant.suspended_at is not None,
        prompt_key=tenant.prompt_key,
    )
    route_set(path=f"tenants/{tenant.pk}", entry=entry)


@transaction.atomic
def tenant_suspend(*, tenant: Tenant, reason: str) -> Tenant:
    """Has every call of the tenant's keys refused, with a sentence; its pages and REST go on and say so.

    Requests that run are finished. Time of hosting is billed on, since nothing is taken off the copies.

    Args:
        reason: read by the tenant's members on each of their pages.

    Raises:
        InvalidInputError: no reason, or more than LONGEST_REASON characters.
        ConflictError: it is suspended already, or to be deleted.
    """
    reason = reason.strip()
    if not reason:
        raise InvalidInputError("say why: the tenant's members read the reason", field="reason")
    if len(reason) > LONGEST_REASON:
        raise InvalidInputError(f"reason has at most {LONGEST_REASON} characters", field="reason")
    # A condition of the statement: of two at once, or of this and a deletion, the second finds the first.
    active = Tenant.objects.filter(pk=tenant.pk, suspended_at=None, disabled_at=None)
    if not active.update(suspended_at=timezone.now(), suspended_reason=reason):
        raise ConflictError(f"tenant {tenant.pk} is suspended already, or to be deleted")
    tenant.refresh_from_db()
    tenant_route_publish(tenant=tenant)
    audit_record(tenant=tenant.pk, action="tenant.suspend", target=tenant, after=_told(tenant))
    return tenant


@transaction.atomic
def tenant_resume(*, tenant: Tenant) -> Tenant:
    """Has its calls taken again, within a second.

    Raises:
        ConflictError: it is not suspended, or to be deleted.
    """
    # What is inserted for the tenant meanwhile holds a share of its key, and may wait for what is held here.
    row = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    if row.suspended_at is None:
        raise ConflictError(f"tenant {row.pk} is not suspended")
    if row.disabled_at is not None:
        raise ConflictError(f"tenant {row.pk} is to be deleted: cancel that first")
    before = _told(row)
    row.suspended_at, row.suspended_reason = None, ""
    row.save(update_fields=["suspended_at", "suspended_reason"])
    tenant_route_publish(tenant=row)
    audit_record(tenant=row.pk, action="tenant.resume", target=row, before=before, after=_told(row))
    return row


def _told(tenant: Tenant) -> dict[str, object]:
    return {"suspended_at": tenant.suspended_at, "reason": tenant.suspended_reason}

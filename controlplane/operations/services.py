"""Deletes tenants: disabled immediately, purged after a grace period, and recoverable until then."""

from __future__ import annotations

import datetime as dt
import logging

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.adapters.lifecycle import adapter_delete, adapter_purge
from controlplane.adapters.models import Adapter
from controlplane.artifacts.uploads.models import Upload
from controlplane.artifacts.uploads.services import upload_discard
from controlplane.errors import ConflictError, ControlPlaneError, InvalidInputError
from controlplane.metering.models import DeadUsageEvent
from controlplane.operations.models import TenantDeletion
from controlplane.operations.selectors import deletions_due
from controlplane.platform.audit.origin import current_origin
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.routes.selectors import route_paths
from controlplane.routes.services import route_remove
from controlplane.tenants.models import ApiKey, Membership, Tenant, User
from controlplane.tenants.services import tenant_route_publish

logger = logging.getLogger(__name__)


@transaction.atomic
def tenant_deletion_schedule(*, tenant: Tenant, confirm: str, reason: str = "") -> TenantDeletion:
    """Disable the tenant within a second, and schedule its purge after the grace period.

    Its keys are refused and its members lose access, but no data is deleted yet.

    Args:
        confirm: the tenant's id again, as a guard against deleting the wrong tenant.

    Raises:
        InvalidInputError: `confirm` is not the tenant's id, or the reason is longer than 500 characters.
        ConflictError: its deletion is scheduled already.
    """
    if confirm != tenant.pk:
        raise InvalidInputError(f"to delete tenant {tenant.pk}, send its id as confirm", field="confirm")
    if len(reason) > 500:
        raise InvalidInputError("reason must have at most 500 characters", field="reason")
    now = timezone.now()
    if not Tenant.objects.filter(pk=tenant.pk, disabled_at=None).update(disabled_at=now):
        raise ConflictError(f"the deletion of tenant {tenant.pk} is already scheduled")
    # Gateways refuse keys without a tenant route, so this disables all of them.
    route_remove(path=f"tenants/{tenant.pk}")
    actor = current_origin().who()
    deletion = TenantDeletion.objects.create(
        tenant=tenant.pk,
        reason=reason.strip(),
        requested_by=actor.name or f"{actor.kind} {actor.id}".strip(),
        requested_at=now,
        purge_after=now + dt.timedelta(days=settings.GRAFTWORK.tenant_grace_days),
    )
    audit_record(tenant=tenant.pk, action="tenant.disable", target=tenant, after=snapshot(deletion))
    return deletion


@transaction.atomic
def tenant_deletion_cancel(*, deletion: TenantDeletion) -> None:
    """Cancel a tenant's deletion, effective within a second.

    Raises:
        ConflictError: the grace period is over.
    """
    # NO KEY: a concurrent INSERT for the tenant holds a key share lock, and may wait for locks held here.
    tenant = Tenant.objects.select_for_update(no_key=True).filter(pk=deletion.pk).first()
    # Once the purge is due, files may have been removed already.
    gone, _ = TenantDeletion.objects.filter(pk=deletion.pk, purge_after__gt=timezone.now()).delete()
    if tenant is None or not gone:
        raise ConflictError(f"tenant {deletion.pk} cannot be restored: the grace period is over")
    tenant.disabled_at = None
    tenant.save(update_fields=["disabled_at"])
    tenant_route_publish(tenant=tenant)
    audit_record(tenant=tenant.pk, action="tenant.enable", target=tenant, before=snapshot(deletion))


def tenants_purge_due() -> int:
    """Purge the tenants whose grace period is over; return their number. A later run retries failures."""
    purged = 0
    for deletion in deletions_due():
        try:
            tenant_purge(deletion=deletion)
            purged += 1
        except ControlPlaneError as error:
            logger.warning("the purge of tenant %s failed and will be retried: %s", deletion.pk, error)
    return purged


def tenant_purge(*, deletion: TenantDeletion) -> None:
    """Remove a tenant's files and rows for good, except those in `selectors.KEPT`.

    Each step is idempotent: after a crash the next run finishes the purge.

    Raises:
        ConflictError: the deletion was cancelled meanwhile.
        UnavailableError: the artifact store does not answer.
    """
    # A write, so that it waits for an uncommitted cancellation.
    claimed = TenantDeletion.objects.filter(pk=deletion.pk, purge_after__lte=timezone.now())
    if not claimed.update(purge_after=deletion.purge_after):
        raise ConflictError(f"the deletion of tenant {deletion.pk} was canceled or is not due")
    for adapter in Adapter.objects.filter(tenant_id=deletion.pk):
        if adapter.deleted_at is None:
            adapter_delete(adapter=adapter)
        adapter_purge(adapter=adapter)
    for upload in Upload.objects.filter(tenant_id=deletion.pk):
        upload_discard(upload=upload)
    _purge_rows(deletion)


@transaction.atomic
def _purge_rows(deletion: TenantDeletion) -> None:
    tenant = Tenant.objects.select_for_update().filter(pk=deletion.pk).first()
    now = timezone.now()
    if not TenantDeletion.objects.filter(pk=deletion.pk, purged_at=None).update(purged_at=now):
        raise ConflictError(f"the deletion of tenant {deletion.pk} was canceled in the meantime")
    if tenant is None:
        return
    if Adapter.objects.filter(tenant=tenant).exists():
        raise ConflictError(f"tenant {tenant.pk} has a new adapter: the next run purges it")
    keys = list(ApiKey.objects.filter(tenant=tenant).values_list("pk", flat=True))
    paths = {f"limits/tenant:{tenant.pk}", *(f"keys/{key}" for key in keys)}
    for path in sorted(route_paths(paths=paths | {f"limits/key:{key}" for key in keys})):
        route_remove(path=path)
    elsewhere = Membership.objects.exclude(tenant=tenant).values("user_id")
    only_here = User.objects.filter(memberships__tenant=tenant, is_staff=False).exclude(pk__in=elsewhere)
    people = list(only_here.values_list("pk", flat=True))
    User.objects.filter(pk__in=people).delete()
    DeadUsageEvent.objects.filter(tenant=tenant.pk).delete()
    counts = {"users": len(people), "keys": len(keys)}
    audit_record(tenant=tenant.pk, action="tenant.purge", target=tenant, after=counts)
    tenant.delete()

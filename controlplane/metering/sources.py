"""Service accounts that may report usage from outside beyond their own project."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from contracts.adapters.reference import SLUG_PATTERN
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.metering.models import UsageSource
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.row_lookup import row_get
from controlplane.tenants.models import ServiceAccount

MOST_TENANTS = 1000


def source_list() -> QuerySet[UsageSource]:
    """Usage sources in the order in which they were created."""
    return UsageSource.objects.select_related("service_account").order_by("pk")


def source_get(*, source_id: int) -> UsageSource:
    """Return a usage source by id. Raises NotFoundError."""
    return row_get(source_list().filter(pk=source_id), f"there is no usage source {source_id}")


@transaction.atomic
def source_create(*, tenant: str, service_account: str, tenants: Sequence[str] | None) -> UsageSource:
    """Lets an account's keys with scope `usage:write` report for `tenants` (None: every one) from now on.

    The tenants need not exist yet: events for a missing tenant become dead letters.

    Raises:
        InvalidInputError: no or too many tenants, or a malformed tenant id.
        NotFoundError: there is no such service account.
        ConflictError: it is a source already.
    """
    if tenants is not None and not 0 < len(tenants) <= MOST_TENANTS:
        raise InvalidInputError(f"tenants must be 1 to {MOST_TENANTS}, or null for all", field="tenants")
    for name in tenants or ():
        if SLUG_PATTERN.fullmatch(name) is None:
            raise InvalidInputError(f"{name[:64]!r} is not the id of a tenant", field="tenants")
    account = ServiceAccount.objects.filter(tenant_id=tenant, name=service_account).first()
    if account is None:
        raise NotFoundError(f"tenant {tenant} has no service account {service_account!r}")
    allowed = None if tenants is None else sorted(set(tenants))
    try:
        with transaction.atomic():
            source = UsageSource.objects.create(service_account=account, tenants=allowed)
    except IntegrityError:
        raise ConflictError(f"{account} is already a usage source: delete that one first") from None
    audit_record(tenant="", action="usage_source.create", target=source, after=snapshot(source))
    return source


@transaction.atomic
def source_delete(*, source: UsageSource) -> None:
    """Restricts its keys to their own projects from now on. Reported usage is kept."""
    audit_record(tenant="", action="usage_source.delete", target=source, before=snapshot(source))
    source.delete()

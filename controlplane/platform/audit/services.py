"""Writes the audit log, in the transaction of the recorded change, and prunes it."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from typing import Any, TextIO

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Model
from django.utils import timezone

from controlplane.errors import InvalidInputError
from controlplane.platform.audit.append_only import lifted
from controlplane.platform.audit.chain import ORIGIN, record_digest
from controlplane.platform.audit.export import record_line
from controlplane.platform.audit.models import AuditChain, AuditRecord
from controlplane.platform.audit.origin import current_origin
from controlplane.platform.audit.snapshot import difference, plain


def audit_record(
    *,
    tenant: str,
    action: str,
    target: Model,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Add a record to a tenant's log ('' is the platform's own). `current_origin` names the actor.

    Call it last in the change's transaction: the tenant's other records wait until that transaction ends.

    Args:
        action: `<thing>.<verb>`, such as `api_key.rotate`.
        target: the changed row; the record keeps its key and text.
        before, after: see `snapshot`. Given both, equal values are left out; without a difference no record
            is written.

    Raises:
        RuntimeError: there is no transaction, so the record could be saved without its change.
    """
    if not connection.in_atomic_block:
        raise RuntimeError(f"record {action} within the transaction of the change: transaction.atomic")
    old, new = difference(None if before is None else plain(before), None if after is None else plain(after))
    if old == {} and new == {}:
        return
    origin = current_origin()
    actor = origin.who()
    _append(
        AuditRecord(
            tenant=tenant,
            actor_kind=actor.kind,
            actor_id=actor.id[:100],
            actor_name=actor.name[:254],
            action=action,
            target_type=target._meta.model_name or "",
            target_id="" if target.pk is None else str(target.pk)[:100],
            target_name=str(target).replace("\0", "")[:200],
            before=old,
            after=new,
            address=origin.address,
            user_agent=origin.user_agent,
            request_id=origin.request_id,
        )
    )


def _append(record: AuditRecord) -> None:
    AuditChain.objects.get_or_create(
        tenant=record.tenant, defaults={"sha256": ORIGIN, "pruned_sha256": ORIGIN}
    )
    chain = AuditChain.objects.select_for_update().get(tenant=record.tenant)
    record.number, record.previous_sha256, record.at = chain.number + 1, chain.sha256, timezone.now()
    record.sha256 = record_digest(record)
    record.save(force_insert=True)
    chain.number, chain.sha256 = record.number, record.sha256
    chain.save(update_fields=["number", "sha256"])


@transaction.atomic
def audit_prune(*, before: dt.datetime, archive: TextIO | None = None) -> dict[str, int]:
    """Remove every log's records from before a time; return the counts by tenant. Each log records it.

    This is the only deletion, for an operator at the command line. On PostgreSQL it needs the rights of the
    table's owner, which the web server need not have. The rest of a chain can still be verified.

    Args:
        archive: receives each record as a line of JSON, synced to disk before the deletion is committed.

    Raises:
        InvalidInputError: `before` is less than GRAFTWORK_AUDIT_KEEP_DAYS ago.
    """
    days = settings.GRAFTWORK.audit_keep_days
    if before > timezone.now() - dt.timedelta(days=days):
        raise InvalidInputError(
            f"records are kept for {days} days (GRAFTWORK_AUDIT_KEEP_DAYS): choose an earlier time"
        )
    # Lock the chains before the table: `audit_record` takes its locks in the same order.
    chains = list(AuditChain.objects.select_for_update().order_by("tenant"))
    removed = {}
    with lifted(connection):
        for chain in chains:
            if count := _prune(chain, before, archive):
                removed[chain.tenant] = count
    for chain in chains:
        if chain.tenant in removed:
            after = {"before": before.isoformat(), "records": removed[chain.tenant]}
            after |= {"through": chain.pruned_through, "sha256": chain.pruned_sha256}
            audit_record(tenant=chain.tenant, action="audit.prune", target=chain, after=after)
    return removed


def _prune(chain: AuditChain, before: dt.datetime, archive: TextIO | None) -> int:
    records = AuditRecord.objects.filter(tenant=chain.tenant).order_by("number")
    # Select by number, not by time alone: after a clock was set back, times are not in order.
    first_kept = records.filter(at__gte=before).values_list("number", flat=True).first()
    old = records.filter(at__lt=before) if first_kept is None else records.filter(number__lt=first_kept)
    if (last := old.last()) is None:
        return 0
    if archive is not None:
        for record in old.iterator():
            archive.write(record_line(record))
        archive.flush()
        os.fsync(archive.fileno())
    chain.pruned_through, chain.pruned_sha256 = last.number, last.sha256
    chain.save(update_fields=["pruned_through", "pruned_sha256"])
    return old.delete()[0]

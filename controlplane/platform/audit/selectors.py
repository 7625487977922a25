"""Reads of the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import QuerySet

from controlplane.platform.audit.chain import ORIGIN, record_digest
from controlplane.platform.audit.models import AuditChain, AuditRecord

CHUNK = 1000


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Result of `chain_verify`; `fault` is '' if no record was altered or removed."""

    tenant: str
    records: int
    fault: str = ""


def audit_list(*, tenant: str | None) -> QuerySet[AuditRecord]:
    """List a tenant's records, newest first; '' is the platform's own log, None every log."""
    if tenant is None:
        return AuditRecord.objects.order_by("-id")
    return AuditRecord.objects.filter(tenant=tenant).order_by("-number")


def audit_before(*, records: QuerySet[AuditRecord], key: str, value: int) -> QuerySet[AuditRecord]:
    """Filter records by those whose `number` or `id`, named by `key`, is smaller than `value`."""
    return records.filter(**{f"{key}__lt": value})


def audit_chunks(*, records: QuerySet[AuditRecord]) -> Iterator[list[AuditRecord]]:
    """Yield the records oldest first in lists of at most CHUNK, so that queries and memory stay small."""
    last = 0
    while chunk := list(records.order_by("id").filter(id__gt=last)[:CHUNK]):
        yield chunk
        last = chunk[-1].pk


def chain_get(*, tenant: str) -> AuditChain:
    """Return the tenant's chain; an unsaved empty one if it has no record."""
    chain = AuditChain.objects.filter(tenant=tenant).first()
    return chain or AuditChain(tenant=tenant, sha256=ORIGIN, pruned_sha256=ORIGIN)


def chain_tenants() -> list[str]:
    """List the tenants that have an audit log."""
    return list(AuditChain.objects.order_by("tenant").values_list("tenant", flat=True))


def chain_verify(*, tenant: str) -> ChainReport:
    """Recompute every digest of a tenant's chain, from the first kept record to the newest."""
    chain = chain_get(tenant=tenant)
    number, previous, count = chain.pruned_through, chain.pruned_sha256, 0
    for record in AuditRecord.objects.filter(tenant=tenant).order_by("number").iterator(CHUNK):
        number += 1
        if record.number != number:
            return ChainReport(tenant, count, f"record {number} is missing")
        if record.previous_sha256 != previous or record_digest(record) != record.sha256:
            return ChainReport(tenant, count, f"record {number} was altered")
        previous = record.sha256
        count += 1
    if (number, previous) != (chain.number, chain.sha256):
        return ChainReport(tenant, count, f"records after {number} are missing: {chain.number} were written")
    return ChainReport(tenant, count)

"""Opts in and out of stored prompts, takes in what gateways sealed, and reads a prompt."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any, Final

import redis
from django.db import transaction
from django.utils import timezone
from redis.backoff import NoBackoff
from redis.retry import Retry

from contracts.prompt_log import PROMPT_STREAM
from controlplane.errors import InvalidInputError
from controlplane.metering.prompt_log.models import REQUEST_ID, KeptPrompt, PromptLog
from controlplane.metering.prompt_log.opening import Opened, is_for, key_pair, opened
from controlplane.metering.prompt_log.selectors import kept_get, prompt_log_get
from controlplane.platform.audit.services import audit_record
from controlplane.platform.sealing import seal, unseal
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.services import tenant_route_publish

MOST_DAYS: Final = 30
MOST_A_DAY: Final = 10_000
"""Most prompts of a tenant in 24 hours: enough to inspect, and a bound on its use of the database."""
_BATCH: Final = 500
_ROUNDS: Final = 40


@transaction.atomic
def prompt_log_set(*, tenant: Tenant, days: int, begun_by: User | None = None) -> PromptLog:
    """Stores prompts and answers of the tenant's requests for `days` from now on, or changes for how long.

    Gateways know within a second. With fewer days than before, the next round deletes older prompts. The
    tenant's row is locked until the transaction ends.

    Raises InvalidInputError: fewer than 1 or more than MOST_DAYS.
    """
    if not 1 <= days <= MOST_DAYS:
        raise InvalidInputError(f"retention must be 1 to {MOST_DAYS} days", field="days")
    # Locking the tenant's row serializes this with other calls and with opting out.
    row = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    log = PromptLog.objects.filter(tenant=row).first()
    before = {"days": log.days} if log else None
    if log is None:
        private, row.prompt_key = key_pair()
        log = PromptLog(tenant=row, days=days, begun_by=begun_by)
        log.sealed_private_key = seal(private, place=log.place)
        row.save(update_fields=["prompt_key"])
        tenant_route_publish(tenant=row)
    log.days = days
    log.save()
    tenant.prompt_key = row.prompt_key
    audit_record(tenant=row.pk, action="prompt_log.set", target=log, before=before, after={"days": days})
    return log


@transaction.atomic
def prompt_log_end(*, tenant: Tenant) -> None:
    """Stops storing prompts; deletes the stored ones, and the key that opens them, at once."""
    row = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    log = prompt_log_get(tenant=row)
    row.prompt_key = tenant.prompt_key = ""
    row.save(update_fields=["prompt_key"])
    tenant_route_publish(tenant=row)
    deleted, _ = KeptPrompt.objects.filter(tenant=row).delete()
    audit_record(
        tenant=row.pk, action="prompt_log.end", target=log, before={"days": log.days, "kept": deleted}
    )
    log.delete()


@transaction.atomic
def kept_read(*, tenant: Tenant, request_id: str) -> tuple[KeptPrompt, Opened]:
    """Return one request's prompt and answer, and record the reader in the audit log.

    Raises:
        NotFoundError: no prompt of this request is stored.
        UnsealError: it cannot be opened.
    """
    log = prompt_log_get(tenant=tenant)
    kept = kept_get(tenant=tenant, request_id=request_id)
    private = unseal(log.sealed_private_key, place=log.place)
    found = opened(bytes(kept.encrypted), private_key=private, tenant=tenant.pk, request_id=kept.request_id)
    audit_record(tenant=tenant.pk, action="prompt.read", target=kept, after={"request_id": request_id})
    return kept, found


def prompts_take(*, redis_url: str) -> int:
    """Writes sealed prompts from the gateways' stream to the database; returns how many were new.

    Entries leave the stream once they are written. After a crash they come again, and each is stored once.
    Prompts of a tenant that opted out, or sealed for an earlier key, are dropped.
    """
    taken = 0
    with redis.Redis.from_url(
        redis_url, socket_connect_timeout=1.0, socket_timeout=5.0, retry=Retry(NoBackoff(), 0)
    ) as client:
        for _ in range(_ROUNDS):
            entries: list[tuple[bytes, dict[bytes, bytes]]] = client.xrange(PROMPT_STREAM, count=_BATCH)
            if not entries:
                break
            taken += _write([fields for _id, fields in entries])
            client.xdel(PROMPT_STREAM, *(entry for entry, _fields in entries))
    return taken


def prompts_expire() -> int:
    """Deletes prompts that are older than their tenant's setting; returns how many."""
    deleted, now = 0, timezone.now()
    for log in PromptLog.objects.all():
        old = KeptPrompt.objects.filter(tenant=log.tenant_id, at__lt=now - dt.timedelta(days=log.days))
        deleted += old.delete()[0]
    return deleted


def _write(entries: list[dict[bytes, bytes]]) -> int:
    rows = [row for row in map(_row, entries) if row is not None]
    tenants = {row.tenant_id for row in rows}
    keys = dict(Tenant.objects.filter(pk__in=tenants).exclude(prompt_key="").values_list("pk", "prompt_key"))
    since = timezone.now() - dt.timedelta(days=1)
    counts = Counter({name: KeptPrompt.objects.filter(tenant=name, at__gte=since).count() for name in keys})
    kept = []
    for row in rows:
        if row.tenant_id in keys and is_for(bytes(row.encrypted), keys[row.tenant_id]):
            counts[row.tenant_id] += 1
            if counts[row.tenant_id] <= MOST_A_DAY:
                kept.append(row)
    # A tenant may have opted out meanwhile: delete what was written for it since.
    KeptPrompt.objects.bulk_create(kept, ignore_conflicts=True)
    ended = [name for name in keys if not PromptLog.objects.filter(tenant=name).exists()]
    KeptPrompt.objects.filter(tenant__in=ended).delete()
    return len(kept)


def _row(fields: dict[bytes, Any]) -> KeptPrompt | None:
    """Return the entry's row; None if no gateway of ours can have written it."""
    try:
        at = dt.datetime.fromtimestamp(int(fields[b"at"]) / 1000, dt.UTC)
        tenant, request_id = fields[b"tenant"].decode(), fields[b"request"].decode()
    except (KeyError, ValueError, OverflowError):
        return None
    sealed = fields.get(b"sealed", b"")
    if not sealed or len(request_id) > REQUEST_ID:
        return None
    return KeptPrompt(tenant_id=tenant, request_id=request_id, at=at, encrypted=sealed)

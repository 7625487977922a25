"""Records, announces and releases the adapters that gateways hold back."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from redis.client import Pipeline
from redis.exceptions import RedisError

from contracts.adapters.reference import EngineName
from contracts.errors import ContractError
from contracts.quarantine import QUARANTINES, Quarantine
from controlplane.errors import ConflictError
from controlplane.monitoring.models import AdapterQuarantine
from controlplane.monitoring.quarantines.notices import QUARANTINE_TASK
from controlplane.platform.audit.services import audit_record
from controlplane.platform.queue import enqueue
from controlplane.platform.row_lookup import row_get
from controlplane.platform.task_signs import connection
from controlplane.webhooks.outbox import event_emit

logger = logging.getLogger(__name__)

KEEP: Final = dt.timedelta(days=90)


def quarantine_list() -> QuerySet[AdapterQuarantine]:
    """Return all quarantines, newest first."""
    return AdapterQuarantine.objects.order_by("-held_at", "-pk")


def quarantine_get(*, quarantine_id: int) -> AdapterQuarantine:
    """Return a quarantine. Raises NotFoundError."""
    rows = AdapterQuarantine.objects.filter(pk=quarantine_id) if quarantine_id < 1 << 63 else None
    rows = AdapterQuarantine.objects.none() if rows is None else rows
    return row_get(rows, f"quarantine {quarantine_id} does not exist")


def quarantines_sync() -> int:
    """Record and announce new quarantines from Redis, and repeat releases that did not reach it.

    Returns how many are new. Without Redis it does nothing; gateways keep the quarantines meanwhile.
    """
    new = 0
    try:
        for found in _shared():
            new += _record(found)
            row = AdapterQuarantine.objects.filter(
                engine_name=found.adapter, held_at=_moment(found.at)
            ).first()
            if row is not None and row.released_at is not None:
                _share_release(row)
    except RedisError as error:
        logger.warning("quarantines are not recorded at present, Redis is away: %s", error)
    return new


def _shared() -> Iterator[Quarantine]:
    """Yield the quarantines in Redis, without released ones."""
    texts: Any = connection(settings.GRAFTWORK.redis_url).hvals(QUARANTINES)
    for text in texts:
        try:
            found = Quarantine.from_json(text)
        except ContractError as error:
            logger.warning("a quarantine of another release is ignored: %s", error)
            continue
        if found.times:
            yield found


@transaction.atomic
def _record(found: Quarantine) -> bool:
    """Record a quarantine with its announcements; False if another run has done it."""
    try:
        name = EngineName.parse(found.adapter)
    except ContractError as error:
        logger.warning("a quarantine is ignored: %s", error)
        return False
    row, is_new = AdapterQuarantine.objects.get_or_create(
        engine_name=found.adapter,
        held_at=_moment(found.at),
        defaults={
            "tenant_slug": name.tenant,
            "adapter": name.adapter,
            "version": name.version,
            "base_model": found.base[:100],
            "copies": list(found.copies),
            "times": found.times,
            "until": _moment(found.until),
            "notify_at": timezone.now(),
        },
    )
    if not is_new:
        return False
    event_emit(tenant=row.tenant_slug, type="adapter.version.quarantined", data=_event(row))
    enqueue(QUARANTINE_TASK, quarantine_id=row.pk)
    audit_record(tenant=row.tenant_slug, action="adapter_version.quarantine", target=row, after=_state(row))
    logger.error("adapter %s is held back until %s", row, row.until)
    return True


@transaction.atomic
def quarantine_release(*, quarantine: AdapterQuarantine) -> AdapterQuarantine:
    """End a quarantine on every gateway within seconds; the deaths until now no longer count.

    Raises:
        ConflictError: it is over already.
    """
    now = timezone.now()
    held = AdapterQuarantine.objects.filter(pk=quarantine.pk, released_at=None, until__gt=now)
    if not held.update(released_at=now):
        raise ConflictError(f"{quarantine} is not held back anymore")
    before = _state(quarantine)
    quarantine.refresh_from_db()
    event_emit(tenant=quarantine.tenant_slug, type="adapter.version.released", data=_event(quarantine))
    transaction.on_commit(lambda: _try_to_share(quarantine))
    audit_record(
        tenant=quarantine.tenant_slug,
        action="adapter_version.release",
        target=quarantine,
        before=before,
        after=_state(quarantine),
    )
    return quarantine


def _try_to_share(row: AdapterQuarantine) -> None:
    try:
        _share_release(row)
    except RedisError as error:
        logger.warning("the release of %s reaches gateways once Redis is back: %s", row, error)


def _share_release(row: AdapterQuarantine) -> None:
    """Release the adapter for gateways, unless it has been held back again since. Raises RedisError."""
    client = connection(settings.GRAFTWORK.redis_url)

    def release(pipe: Pipeline) -> None:
        text: Any = pipe.hget(QUARANTINES, row.engine_name)
        seconds, micros = client.time()
        pipe.multi()
        if text is None or _moment(Quarantine.from_json(text).at) != row.held_at:
            return
        now = seconds + micros / 1e6
        copies = tuple(map(str, row.copies))
        released = Quarantine(row.base_model, row.engine_name, now, now, 0, copies)
        pipe.hset(QUARANTINES, row.engine_name, released.to_json())

    client.transaction(release, QUARANTINES)


def quarantines_forget(*, now: dt.datetime | None = None) -> int:
    """Delete quarantines that ended before KEEP; return how many."""
    before = (now or timezone.now()) - KEEP
    return AdapterQuarantine.objects.filter(until__lt=before).delete()[0]


def _moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def _event(row: AdapterQuarantine) -> dict[str, Any]:
    return {
        "adapter": row.adapter,
        "version": row.version,
        "base_model": row.base_model,
        "dead_copies": len(row.copies),
        "held_at": row.held_at.isoformat(),
        "until": (row.released_at or row.until).isoformat(),
    }


def _state(row: AdapterQuarantine) -> dict[str, Any]:
    return {
        "adapter": str(row),
        "base_model": row.base_model,
        "copies": row.copies,
        "until": row.until,
        "released_at": row.released_at,
    }

"""Replays dead letters."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from django.db import DataError, transaction

from controlplane.metering.cloud_events.errors import CloudEventError
from controlplane.metering.cloud_events.intake import (
    DEAD,
    NO_PLACE,
    Status,
    event_replay,
    replay_key,
    senders_wait,
)
from controlplane.metering.cloud_events.names import Reporter
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.models import DeadUsageEvent
from controlplane.metering.services import dead_log, usage_ingest
from controlplane.platform.audit.services import audit_record
from controlplane.platform.queue import enqueue
from controlplane.tenants.models import ApiKey

logger = logging.getLogger(__name__)
A_TIME: Final = 500
"""Letters per task run, which may take two minutes while others wait in its queue."""

_MOST_REASONS: Final = 20
"""Most reasons that are logged for one page of letters."""


def dead_usage_replay() -> tuple[int, int]:
    """Ingests the dead letters again; returns how many events were new, and how many are still dead.

    Call it after the cause is fixed: a gateway of another release, a clock, GRAFTWORK_USAGE_KEEP_DAYS, or a
    missing tenant or base model; for events from outside also a missing project or adapter.
    """
    letters, counted, after = DeadUsageEvent.objects.order_by("pk"), 0, 0
    # Letters that are dead again get higher ids, so stop at the present last one.
    last = letters.last()
    through = 0 if last is None else last.pk
    while page := list(letters.filter(pk__gt=after, pk__lte=through)[:A_TIME]):
        counted += _replayed(page)
        after = page[-1].pk
    dead_log(DeadUsageEvent.objects.all().only("reason").iterator())
    return counted, DeadUsageEvent.objects.count()


@transaction.atomic
def dead_usage_replay_ask() -> int:
    """Enqueues a replay of all dead letters; returns how many there are."""
    letters = DeadUsageEvent.objects.order_by("-pk")
    newest, count = letters.first(), letters.count()
    if newest is not None:
        enqueue("metering.replay_dead")
        audit_record(tenant="", action="dead_usage.replay", target=newest, after={"letters": count})
    return count


def dead_usage_replay_waiting(*, after: int = 0) -> tuple[int, int | None]:
    """Ingests events from outside that waited for a partition, at most `A_TIME` of those past `after`.

    Returns how many were new, and the id to continue after; None if there are no more.
    """
    waiting = DeadUsageEvent.objects.filter(stream_id__startswith=DEAD, reason=NO_PLACE, pk__gt=after)
    letters = list(waiting.order_by("pk")[:A_TIME])
    return _replayed(letters), letters[-1].pk if len(letters) == A_TIME else None


def _replayed(letters: Iterable[DeadUsageEvent]) -> int:
    counted, failed = 0, Counter[str]()
    for dead in letters:
        try:
            with transaction.atomic():
                counted += _replay(dead)
        # An unreadable letter does not stop the others.
        except (ValueError, LookupError, TypeError, CloudEventError, DataError) as error:
            failed[f"{type(error).__name__}: {error}"[:200]] += 1
    # Log one line per reason: there may be thousands of letters.
    for reason, count in failed.most_common(_MOST_REASONS):
        logger.error("%d dead letters cannot be read and are kept: %s", count, reason)
    return counted


def _replay(dead: DeadUsageEvent) -> int:
    """Return how many events of the letter were new."""
    if external := dead.stream_id.startswith(DEAD):
        # Lock the tenant before the letter, in the order that a sender takes these locks.
        senders_wait(tenants=[dead.tenant])
    # Deleting the row claims the letter: two replays may run at once.
    if not DeadUsageEvent.objects.filter(pk=dead.pk).delete()[0]:
        return 0
    if external:
        return _replay_external(dead)
    return usage_ingest(entries=[StreamEntry(dead.stream_id, dead.payload.encode())], log=False)


def _replay_external(dead: DeadUsageEvent) -> bool:
    """Return True if the event was new. A key that was revoked since was valid when the event came."""
    keys = ApiKey.objects.select_related("project", "service_account")
    api_key = keys.filter(pk=replay_key(dead)).first()
    if api_key is None:
        dead.reason = "the key it was sent with was deleted"
        dead.save(force_insert=True)
        return False
    return event_replay(dead=dead, reporter=Reporter.of_key(api_key)) is Status.ACCEPTED

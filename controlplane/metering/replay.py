"""Dead letters, taken in once more."""

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
"""Letters that a task takes in: it may run for two minutes, and others wait in its queue."""

_MOST_REASONS: Final = 20
"""That are told of one page of letters."""


def dead_usage_replay() -> tuple[int, int]:
    """Ingests the dead letters once more; returns how many events were new, and how many are dead still.

    After what was wrong is mended: a gateway of another release, a clock, GRAFTWORK_USAGE_KEEP_DAYS, a tenant
    or base model that has come since; of events from outside also a project or adapter.
    """
    letters, counted, after = DeadUsageEvent.objects.order_by("pk"), 0, 0
    # What is dead anew comes after the last: it is not looked at twice.
    last = letters.last()
    through = 0 if last is None else last.pk
    while page := list(letters.filter(pk__gt=after, pk__lte=through)[:A_TIME]):
        counted += _replayed(page)
        after = page[-1].pk
    dead_log(DeadUsageEvent.objects.all().only("reason").iterator())
    return counted, DeadUsageEvent.objects.count()


@transaction.atomic
def dead_usage_replay_ask() -> int:
    """Has a task take the dead letters in once more; returns how many there are."""
    letters = DeadUsageEvent.objects.order_by("-pk")
    newest, count = letters.first(), letters.count()
    if newest is not None:
        enqueue("metering.replay_dead")
        audit_record(tenant="", action="dead_usage.replay", target=newest, after={"letters": count})
    return count


def dead_usage_replay_waiting(*, after: int = 0) -> tuple[int, int | None]:
    """Takes in events from outside that waited for a partition, at most `A_TIME` of those past `after`.

    Returns how many were new, and past which the next ones are; None when there are no more.
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
        # What cannot be read holds up none of the others.
        except (ValueError, LookupError, TypeError, CloudEventError, DataError) as error:
            failed[f"{type(error).__name__}: {error}"[:200]] += 1
    # A line a reason: there may be thousands of letters.
    for reason, count in failed.most_common(_MOST_REASONS):
        logger.error("%d dead letters stay, which cannot be read: %s", count, reason)
    return counted


def _replay(dead: DeadUsageEvent) -> int:
    """How many were new of it."""
    if external := dead.stream_id.startswith(DEAD):
        # Before the letter itself, as who sends it again does.
        senders_wait(tenants=[dead.tenant])
    # Whoever deletes it has it: there may be two replays at once.
    if not DeadUsageEvent.objects.filter(pk=dead.pk).delete()[0]:
        return 0
    if external:
        return _replay_external(dead)
    return usage_ingest(entries=[StreamEntry(dead.stream_id, dead.payload.encode())], log=False)


def _replay_external(dead: DeadUsageEvent) -> bool:
    """Whether it was new. A key that was revoked since was right when the event came."""
    keys = ApiKey.objects.select_related("project", "service_account")
    api_key = keys.filter(pk=replay_key(dead)).first()
    if api_key is None:
        dead.reason = "the key that it came by is gone"
        dead.save(force_insert=True)
        return False
    return event_replay(dead=dead, reporter=Reporter.of_key(api_key)) is Status.ACCEPTED

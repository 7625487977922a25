"""Ingests usage events from outside; the response gives the outcome of each.

They are written by the same statement as the stream's events. A response covers committed events only, so
a sender without a response sends again. They bypass Redis, so its loss cannot lose them.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from django.db import connection, transaction
from django.utils import timezone

from controlplane.metering.cloud_events.envelope import CloudEvent
from controlplane.metering.cloud_events.errors import CloudEventError, EventDeadError, EventRefusedError
from controlplane.metering.cloud_events.names import Names, Reporter
from controlplane.metering.cloud_events.usage import UsageData, request_id, usage_row
from controlplane.metering.event_rows import EventRow
from controlplane.metering.insert import EventKey, events_insert_told
from controlplane.metering.models import DeadUsageEvent, UsageEventRow
from controlplane.metering.partitions import partitions_ensure, partitions_missing
from controlplane.metering.services import keep_from
from controlplane.platform.queue import enqueue
from controlplane.platform.row_security.scope import current_scope, every_row

logger = logging.getLogger(__name__)
DEAD: Final = "ce-"
"""Prefix of the `stream_id` of dead letters that came as CloudEvents."""
MOST_DEAD: Final = 10_000
"""Most dead letters of one key, which must be fixed before more are stored."""
_LOCK: Final = 7_301_119
_LOCKS: Final = 64
NO_PLACE: Final = "the database has no partition for its day yet: it will be ingested within a minute"


class Status(StrEnum):
    """Outcome of an event."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    DEAD_LETTER = "dead_letter"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one event. `reason` says why it does not count (yet)."""

    id: str
    source: str
    status: Status
    reason: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"id": self.id, "source": self.source, "status": self.status.value, "reason": self.reason}


def events_take(
    *, reporter: Reporter, events: Sequence[CloudEvent | EventRefusedError], now: dt.datetime | None = None
) -> list[Outcome]:
    """Writes the new and valid ones of `events`; returns the outcome of each, in order.

    Args:
        events: as parsed; an error stands for an event that could not be parsed.
    """
    now = now or timezone.now()
    # Row security would hide other tenants' rows from the key; `Names` checks which it may report for.
    with every_row(), transaction.atomic():
        batch = _Batch(Names(reporter), now)
        for event in events:
            batch.add(event)
        return batch.write()


def event_replay(*, dead: DeadUsageEvent, reporter: Reporter) -> Status:
    """Ingests a dead letter again, with its key's present permissions; returns the outcome.

    The caller has deleted its row in the same transaction. A letter that is dead or refused again is stored
    with the present reason.
    """
    event = CloudEvent.from_json(json.loads(dead.payload)["event"])
    (outcome,) = events_take(reporter=reporter, events=[event])
    if outcome.status is Status.REFUSED:
        # No sender receives this outcome, so keep the letter with the reason for operators.
        dead.reason = outcome.reason
        dead.save(force_insert=True)
    return outcome.status


def replay_key(dead: DeadUsageEvent) -> str:
    """Return the public id of the key that sent the event."""
    return str(json.loads(dead.payload)["key"])


def senders_wait(*, tenants: Collection[str]) -> None:
    """Lock these tenants against concurrent intake until the transaction ends.

    Of an event sent twice at once with times on two days, the second then sees the first. Tenants share a few
    advisory locks; there are none on SQLite.
    """
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        for lock_id in sorted({zlib.crc32(tenant.encode()) % _LOCKS for tenant in tenants}):
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK, lock_id])


class _Batch:
    """Events to be written in one transaction."""

    def __init__(self, names: Names, now: dt.datetime) -> None:
        self._names, self._now = names, now
        self._found: list[tuple[CloudEvent | CloudEventError, EventRow | CloudEventError]] = []

    def add(self, event: CloudEvent | EventRefusedError) -> None:
        if isinstance(event, CloudEventError):
            self._found.append((event, event))
            return
        try:
            self._found.append((event, self._row(event)))
        except CloudEventError as error:
            self._found.append((event, error))

    def _row(self, event: CloudEvent) -> EventRow:
        data = UsageData.from_event(event, now=self._now)
        tenant, project = self._names.owner(event, data)
        meant = self._names.meant(event, tenant, data.model)
        key_id = self._names.reporter.key_id
        row = usage_row(event, data, meant, tenant=tenant, project=project, key_id=key_id)
        if row.day < keep_from(today=self._now.date()).isoformat():
            reason = f"its day {row.day} is older than GRAFTWORK_USAGE_KEEP_DAYS"
            raise EventDeadError(reason, id=event.id, source=event.source)
        return row

    def write(self) -> list[Outcome]:
        rows = [row for _, row in self._found if isinstance(row, EventRow)]
        missing = self._days_without_partition(rows)
        rows = [row for row in rows if row.day not in missing]
        senders_wait(tenants={row.tenant for row in rows})
        known = _on_another_day(rows)
        fresh = events_insert_told([row for row in rows if row.key not in known])
        outcomes = [self._outcome(event, row, fresh, missing) for event, row in self._found]
        self._bury(outcomes)
        return outcomes

    def _days_without_partition(self, rows: Iterable[EventRow]) -> set[str]:
        """Return days without a partition, and enqueue a task for them.

        The web process's role owns no table, so only the task can create partitions. It then ingests the
        events.
        """
        days = {dt.date.fromisoformat(row.day) for row in rows}
        if current_scope() is None:
            partitions_ensure(days)
            return set()
        missing = partitions_missing(days)
        if missing:
            enqueue("metering.replay_waiting")
        return {day.isoformat() for day in missing}

    def _outcome(
        self,
        event: CloudEvent | CloudEventError,
        row: EventRow | CloudEventError,
        fresh: set[EventKey],
        missing: set[str],
    ) -> Outcome:
        if isinstance(row, EventDeadError):
            return Outcome(event.id, event.source, Status.DEAD_LETTER, str(row))
        if isinstance(row, CloudEventError):
            return Outcome(event.id, event.source, Status.REFUSED, str(row))
        if row.day in missing:
            return Outcome(event.id, event.source, Status.DEAD_LETTER, NO_PLACE)
        if row.key in fresh:
            # Repeated events of a batch: the first one is accepted, the others are duplicates.
            fresh.discard(row.key)
            return Outcome(event.id, event.source, Status.ACCEPTED)
        return Outcome(event.id, event.source, Status.DUPLICATE)

    def _bury(self, outcomes: list[Outcome]) -> None:
        """Stores dead letters up to this key's limit; replacing one of the same event needs no room."""
        letters = {
            place: self._letter(event, outcome.reason)
            for place, ((event, _), outcome) in enumerate(zip(self._found, outcomes, strict=True))
            if outcome.status is Status.DEAD_LETTER and isinstance(event, CloudEvent)
        }
        if not letters:
            return
        mine = DeadUsageEvent.objects.filter(stream_id__startswith=self._begins)
        sent = {letter.stream_id for letter in letters.values()}
        held = set(mine.filter(stream_id__in=sent).values_list("stream_id", flat=True))
        room = MOST_DEAD - mine.count()
        kept: dict[str, DeadUsageEvent] = {}
        for place, letter in letters.items():
            if letter.stream_id not in held and letter.stream_id not in kept:
                if room <= 0:
                    outcome = outcomes[place]
                    full = f"{outcome.reason}; this key has {MOST_DEAD} dead letters: fix those first"
                    outcomes[place] = Outcome(outcome.id, outcome.source, Status.REFUSED, full)
                    continue
                room -= 1
            kept[letter.stream_id] = letter
        if kept:
            reason = next(iter(kept.values())).reason
            logger.warning("%d usage events by key %s are dead: %s", len(kept), self._key_id, reason)
        # One order everywhere, so that concurrent senders cannot deadlock.
        DeadUsageEvent.objects.bulk_create(
            [kept[name] for name in sorted(kept)],
            update_conflicts=True,
            unique_fields=["stream_id"],
            update_fields=["payload", "reason"],
        )

    def _letter(self, event: CloudEvent, reason: str) -> DeadUsageEvent:
        tenant, project = self._names.reporter.owner(event.data.get("tenant"), event.data.get("project"))
        identity = hashlib.sha256(f"{tenant}\0{request_id(event, project)}".encode()).hexdigest()[:30]
        payload = json.dumps({"key": self._key_id, "event": event.to_json()})
        return DeadUsageEvent(
            stream_id=f"{self._begins}{identity}", tenant=tenant, payload=payload, reason=reason
        )

    @property
    def _key_id(self) -> str:
        return self._names.reporter.key_id

    @property
    def _begins(self) -> str:
        return f"{DEAD}{self._key_id}-"


def _on_another_day(rows: Sequence[EventRow]) -> set[EventKey]:
    """Keys of `rows` that are known, or repeated in the batch, with a time on the day before or after.

    A sender that reports the time of sending, and retries past midnight, is then not billed twice.
    """
    by_day: dict[tuple[str, str], dict[str, EventRow]] = defaultdict(dict)
    for row in rows:
        by_day[row.tenant, row.day][row.request_id] = row
    known: set[EventKey] = set()
    for (tenant, day), found in by_day.items():
        ids = UsageEventRow.objects.filter(tenant=tenant, request_id__in=list(found), day__in=_next_to(day))
        known |= {found[name].key for name in ids.values_list("request_id", flat=True)}
    taken: set[EventKey] = set()
    for row in rows:
        if any((day.isoformat(), *row.key[1:]) in taken for day in _next_to(row.day)):
            known.add(row.key)
        elif row.key not in known:
            taken.add(row.key)
    return known


def _next_to(day: str) -> tuple[dt.date, dt.date]:
    date, one = dt.date.fromisoformat(day), dt.timedelta(days=1)
    return date - one, date + one

"""Takes usage events from outside in: each is told at once what became of it.

They go straight into the statement that the stream's events go into. An answer says what is committed, so
a sender that got none sends again; and nothing is lost with Redis, before which these events have no log.
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
"""How the `stream_id` of a dead letter begins that came as a CloudEvent."""
MOST_DEAD: Final = 10_000
"""Dead letters of one key. Who has as many has something to mend first."""
_LOCK: Final = 7_301_119
_LOCKS: Final = 64
NO_PLACE: Final = "its day has no place in the database yet: it is taken in within a minute"


class Status(StrEnum):
    """What became of an event."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    DEAD_LETTER = "dead_letter"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one event. `reason` says why it does not count (yet)."""

    id: str
    source: str
    status: Status
    reason: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"id": self.id, "source": self.source, "status": self.status.value, "reason": self.reason}


def events_take(
    *, reporter: Reporter, events: Sequence[CloudEvent | EventRefusedError], now: dt.datetime | None = None
) -> list[Outcome]:
    """Writes what is new and right among `events`; returns what became of each, in their order.

    Args:
        events: as they were parsed; an error stands for one that could not be.
    """
    now = now or timezone.now()
    # A source may report for tenants whose rows its key alone does not meet; `Names` says for which.
    with every_row(), transaction.atomic():
        batch = _Batch(Names(reporter), now)
        for event in events:
            batch.add(event)
        return batch.write()


def event_replay(*, dead: DeadUsageEvent, reporter: Reporter) -> Status:
    """Takes a dead letter in once more, for whom its key may report today; it keeps today's reason.

    Its row is deleted by then, in the same transaction.
    """
    event = CloudEvent.from_json(json.loads(dead.payload)["event"])
    (outcome,) = events_take(reporter=reporter, events=[event])
    if outcome.status is Status.REFUSED:
        # Nobody waits for the answer: it is kept for whoever looks.
        dead.reason = outcome.reason
        dead.save(force_insert=True)
    return outcome.status


def replay_key(dead: DeadUsageEvent) -> str:
    """Public id of the key that the event came by."""
    return str(json.loads(dead.payload)["key"])


def senders_wait(*, tenants: Collection[str]) -> None:
    """Until the commit nobody else takes events of these tenants in: of one that is sent twice at a time,
    with times on two days, the second is judged when the first is there. Few locks for many tenants."""
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        for place in sorted({zlib.crc32(tenant.encode()) % _LOCKS for tenant in tenants}):
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK, place])


class _Batch:
    """Events on their way into one transaction."""

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
        data = UsageData.of(event, now=self._now)
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
        missing = self._days_without_place(rows)
        rows = [row for row in rows if row.day not in missing]
        senders_wait(tenants={row.tenant for row in rows})
        known = _on_another_day(rows)
        fresh = events_insert_told([row for row in rows if row.key not in known])
        outcomes = [self._outcome(event, row, fresh, missing) for event, row in self._found]
        self._bury(outcomes)
        return outcomes

    def _days_without_place(self, rows: Iterable[EventRow]) -> set[str]:
        """The web process's role owns no table, so it makes no partition: a task does, and takes them in."""
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
            # The first of those that came twice in one batch; the others find it gone.
            fresh.discard(row.key)
            return Outcome(event.id, event.source, Status.ACCEPTED)
        return Outcome(event.id, event.source, Status.DUPLICATE)

    def _bury(self, outcomes: list[Outcome]) -> None:
        """Keeps what is dead, as far as there is room for this key's; one that is sent again needs none."""
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
                    full = f"{outcome.reason}; this key has {MOST_DEAD} dead letters: mend those first"
                    outcomes[place] = Outcome(outcome.id, outcome.source, Status.REFUSED, full)
                    continue
                room -= 1
            kept[letter.stream_id] = letter
        if kept:
            reason = next(iter(kept.values())).reason
            logger.warning("%d usage events by key %s are dead: %s", len(kept), self._key_id, reason)
        # In one order everywhere, so that two senders never wait for each other.
        DeadUsageEvent.objects.bulk_create(
            [kept[name] for name in sorted(kept)],
            update_conflicts=True, unique_fields=["stream_id"], update_fields=["payload", "reason"],
        )  # fmt: skip

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
    """Of `rows` those that are in already, or come earlier in the batch, with a time on the day before or
    after: a sender that tells the time of sending, and sends again past midnight, is not billed twice."""
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

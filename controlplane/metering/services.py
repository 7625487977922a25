"""Writes usage events: rows, sums and dead letters in one transaction."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.db import DataError, transaction
from django.utils import timezone

from contracts.errors import ContractError
from controlplane.metering.event_rows import EventRow, StreamEntry, event_row, named_day
from controlplane.metering.insert import events_insert
from controlplane.metering.known_names import reasons_unknown
from controlplane.metering.models import DeadUsageEvent, UsageEventRow
from controlplane.metering.partitions import events_drop, partitions_ensure
from controlplane.tenants.services import api_keys_touch

logger = logging.getLogger(__name__)
_BACK: Final = 3
"""Days to search for an earlier copy of an event from a gateway whose clock was ahead."""
_AHEAD: Final = 3
"""Days whose partitions are created in advance."""


@dataclass(frozen=True, slots=True)
class CheckedEntries:
    """Validated stream entries, with the rows and dead letters to write; `rows` are those of `living`."""

    entries: Sequence[StreamEntry]
    living: list[StreamEntry]
    rows: list[EventRow]
    dead: list[DeadUsageEvent]


def usage_ingest(*, entries: Sequence[StreamEntry], log: bool = True) -> int:
    """Validates and writes stream entries; returns how many events were new. `log`: log dead ones."""
    return usage_write(checked=entries_check(entries=entries), log=log)


def entries_check(*, entries: Sequence[StreamEntry]) -> CheckedEntries:
    """Validate stream entries, without the database.

    Invalid events become dead letters. So do those of days whose events were dropped, since nothing shows any
    more whether they are new.
    """
    living: list[StreamEntry] = []
    rows: list[EventRow] = []
    dead: list[DeadUsageEvent] = []
    oldest = keep_from().isoformat()
    for entry in entries:
        try:
            row = event_row(entry)
        except ContractError as error:
            dead.append(_dead(entry, str(error)))
            continue
        if row.day < oldest:
            dead.append(
                _dead(entry, f"its day {row.day} is older than GRAFTWORK_USAGE_KEEP_DAYS", row.tenant)
            )
        else:
            living.append(entry)
            rows.append(row)
    return CheckedEntries(entries, living, rows, dead)


def usage_write(*, checked: CheckedEntries, log: bool = True) -> int:
    """Writes the new events, sums and dead letters; returns how many events were new. `log`: log dead ones.

    Events of an unknown tenant or base model are dead until they are replayed. If the database refuses a
    value, only that event is dead.
    """
    entries = checked.entries
    rows, dead = _known(checked)
    partitions_ensure({dt.date.fromisoformat(day) for day in {row.day for row in rows}})
    try:
        count = _write(rows, dead)
    except DataError as error:
        if len(entries) == 1:
            dead = [_dead(entries[0], f"the database refuses it: {error}")]
            count = _write([], dead)
            dead_log(dead if log else ())
            return count
    else:
        dead_log(dead if log else ())
        api_keys_touch(used=_last_uses(rows))
        return count
    half = len(entries) // 2
    return usage_ingest(entries=entries[:half], log=log) + usage_ingest(entries=entries[half:], log=log)


def dead_log(dead: Iterable[DeadUsageEvent]) -> None:
    """Logs one line per reason, not per letter: a missing tenant comes with thousands."""
    for reason, count in Counter(letter.reason for letter in dead).most_common():
        logger.warning("%d usage entries are dead: %s", count, reason)


def _known(checked: CheckedEntries) -> tuple[list[EventRow], list[DeadUsageEvent]]:
    rows: list[EventRow] = []
    dead = list(checked.dead)
    for entry, row, reason in zip(checked.living, checked.rows, reasons_unknown(checked.rows), strict=True):
        if reason:
            dead.append(_dead(entry, reason, row.tenant))
        else:
            rows.append(row)
    return rows, dead


def usage_partitions_prepare() -> None:
    """Creates the partitions of the coming days, so that no event has to wait for one."""
    partitions_ensure({_today() + dt.timedelta(days=ahead) for ahead in range(_AHEAD + 1)})


def usage_drop_old(*, today: dt.date | None = None) -> int:
    """Drops the events of days that are no longer kept; returns how many days. Sums are kept."""
    return events_drop(before=keep_from(today=today))


def keep_from(*, today: dt.date | None = None) -> dt.date:
    """Return the first UTC day whose events are kept."""
    return (today or _today()) - dt.timedelta(days=settings.GRAFTWORK.usage_keep_days)


def _today() -> dt.date:
    return timezone.now().astimezone(dt.UTC).date()


@transaction.atomic
def _write(rows: Sequence[EventRow], dead: Sequence[DeadUsageEvent]) -> int:
    count = events_insert(_without_known(rows))
    DeadUsageEvent.objects.bulk_create(dead, ignore_conflicts=True)
    return count


def _without_known(rows: Sequence[EventRow]) -> list[EventRow]:
    """Leave out events of a wrong clock that were counted already, on one of the previous days."""
    return [row for row in rows if named_day(row) == row.day or not _is_known(row)]


def _is_known(row: EventRow) -> bool:
    day = dt.date.fromisoformat(row.day)
    return UsageEventRow.objects.filter(
        day__in=[day - dt.timedelta(days=back) for back in range(_BACK)],
        tenant=row.tenant,
        request_id=row.request_id,
        attempt=row.attempt,
    ).exists()


def _last_uses(rows: Iterable[EventRow]) -> dict[str, dt.datetime]:
    newest: dict[str, int] = {}
    now = time.time_ns() // 1_000_000
    for row in rows:
        newest[row.key_id] = max(min(row.started_at, now), newest.get(row.key_id, 0))
    return {key: dt.datetime.fromtimestamp(at / 1000, dt.UTC) for key, at in newest.items()}


def _dead(entry: StreamEntry, reason: str, tenant: str = "") -> DeadUsageEvent:
    # PostgreSQL stores no NUL in text.
    payload = entry.event.decode(errors="backslashreplace").replace("\0", "\\x00")
    return DeadUsageEvent(
        stream_id=entry.stream_id, tenant=tenant, payload=payload, reason=reason.replace("\0", "\\x00")
    )

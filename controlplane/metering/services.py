"""Writes usage events: rows, rollups and dead letters in one transaction."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from django.db import IntegrityError, connection, transaction
from django.db.models import CharField
from django.utils import timezone

from controlplane.metering.models import NAME, DeadUsageEvent, UsageEventRow, UsageRollup
from gateway.wire import UsageEvent, WireError

logger = logging.getLogger(__name__)
_STATUSES: Final = ("ok", "error", "cancelled", "interrupted")
_MAX_TOKENS: Final = 1 << 40
_MAX_MS: Final = 1e12
_KEY = tuple[dt.date, str, str, int]
_TEXT_FIELDS: Final = tuple(
    field.name for field in UsageEventRow._meta.get_fields() if isinstance(field, CharField)
)


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of the usage stream; `event` is JSON of a UsageEvent, or should be."""

    stream_id: str
    event: bytes


def usage_ingest(*, entries: Sequence[StreamEntry]) -> int:
    """Writes what is new among `entries`; returns how many events that was.

    What is no usage event goes to the dead letters. Two ingesters that meet the same new event collide
    on the unique constraint; the loser starts again and finds it there.
    """
    rows: dict[_KEY, UsageEventRow] = {}
    dead: list[DeadUsageEvent] = []
    for entry in entries:
        try:
            row = _row(entry.event)
        except (WireError, RecursionError) as error:
            dead.append(_dead(entry, str(error)))
        else:
            rows.setdefault(_key(row), row)
    for attempt in range(5):
        try:
            return _write(rows, dead)
        except IntegrityError:
            if attempt == 4:
                raise
    raise AssertionError("unreachable")


@transaction.atomic
def _write(rows: dict[_KEY, UsageEventRow], dead: list[DeadUsageEvent]) -> int:
    found = UsageEventRow.objects.filter(
        day__in={row.day for row in rows.values()},
        tenant__in={row.tenant for row in rows.values()},
        request_id__in=[row.request_id for row in rows.values()],
    )
    known = {_key(row) for row in found.only("day", "tenant", "request_id", "attempt")}
    # In one order everywhere, so that two ingesters with the same events never wait for each other.
    fresh = [row for key, row in sorted(rows.items()) if key not in known]
    UsageEventRow.objects.bulk_create(fresh)
    _add_to_rollups(fresh)
    DeadUsageEvent.objects.bulk_create(dead, ignore_conflicts=True)
    return len(fresh)


def _add_to_rollups(rows: Sequence[UsageEventRow]) -> None:
    sums: dict[tuple[str | dt.date, ...], list[int]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in UsageRollup.DIMENSIONS)
        amounts = (1, row.prompt_tokens, row.cached_tokens, row.completion_tokens)
        sums[key] = [old + new for old, new in zip(sums.get(key, (0, 0, 0, 0)), amounts, strict=True)]
    # In one order everywhere, so that two ingesters never wait for each other's rows.
    values = [(*key, *amounts) for key, amounts in sorted(sums.items(), key=lambda item: str(item[0]))]
    if values:
        with connection.cursor() as cursor:
            cursor.executemany(_rollup_sql(), values)


def _rollup_sql() -> str:
    # The ORM's upsert overwrites; this one adds. The same text serves SQLite and PostgreSQL.
    table = UsageRollup._meta.db_table
    columns = (*UsageRollup.DIMENSIONS, *UsageRollup.SUMS)
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in UsageRollup.SUMS)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})"  # noqa: S608
        f" ON CONFLICT ({', '.join(UsageRollup.DIMENSIONS)}) DO UPDATE SET {added}"
    )


def _row(data: bytes) -> UsageEventRow:
    event = UsageEvent.from_json(data)
    values = asdict(event)
    for name in _TEXT_FIELDS:
        # Half a surrogate pair is a text to Python and to no database.
        if len(values[name]) > NAME or "\0" in values[name] or not _is_unicode(values[name]):
            raise WireError(f"usage event field {name} must be at most {NAME} characters without NUL")
    if event.status not in _STATUSES:
        raise WireError(f"usage event status must be one of {', '.join(_STATUSES)}, got {event.status!r}")
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        if isinstance(values[name], bool) or not 0 <= values[name] < _MAX_TOKENS:
            raise WireError(f"usage event field {name} must be 0 or more, got {values[name]!r}")
    if event.cached_tokens > event.prompt_tokens:
        raise WireError("usage event field cached_tokens must not exceed prompt_tokens")
    if not 0 <= event.attempt < 1 << 31 or not 0 <= event.started_at < 1 << 62:
        raise WireError("usage event fields attempt and started_at must be 0 or more")
    # Compared, not converted: a JSON integer may be too large for a float, and NaN is below nothing.
    if not -_MAX_MS < event.duration_ms < _MAX_MS or not -_MAX_MS < (event.ttft_ms or 0.0) < _MAX_MS:
        raise WireError("usage event fields duration_ms and ttft_ms must be finite, below 1e12")
    return UsageEventRow(**{**values, "day": _day(event.event_id)})


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _day(event_id: str) -> dt.date:
    """UTC day of a UUIDv7: the gateway's, so that a late event still counts on the day it happened."""
    try:
        value = uuid.UUID(event_id)
    except ValueError as error:
        raise WireError(f"usage event field event_id must be a UUID, got {event_id!r}") from error
    if value.version != 7:
        raise WireError(f"usage event field event_id must be a UUID of version 7, got {event_id!r}")
    seconds = (value.int >> 80) / 1000
    if seconds > (timezone.now() + dt.timedelta(days=1)).timestamp():
        raise WireError(f"usage event {event_id} lies in the future: check the gateway's clock")
    return dt.datetime.fromtimestamp(seconds, dt.UTC).date()


def _dead(entry: StreamEntry, reason: str) -> DeadUsageEvent:
    # PostgreSQL stores no NUL in text.
    payload = entry.event.decode(errors="backslashreplace").replace("\0", "\\x00")
    logger.warning("usage entry %s is dead: %s", entry.stream_id, reason)
    return DeadUsageEvent(stream_id=entry.stream_id, payload=payload, reason=reason.replace("\0", "\\x00"))


def _key(row: UsageEventRow) -> _KEY:
    return row.day, row.tenant, row.request_id, row.attempt

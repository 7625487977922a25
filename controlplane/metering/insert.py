"""Writes a batch of usage events, some of them known already, and adds the new ones to the sums.

PostgreSQL takes two statements for any batch: COPY into a temporary table, then one that inserts the new
events and adds exactly those to both sums. On SQLite, which has one writer at a time, known keys are read
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from django.db import connection

from controlplane.metering.adapter_hours import (
    SOURCES,
    adapter_hours_sql,
    adapter_hours_write,
    on_conflict_sql,
    upsert_sql,
)
from controlplane.metering.event_rows import COLUMNS, EventRow
from controlplane.metering.models import UsageEventRow, UsageHour, UsageRollup

_EVENTS: Final = UsageEventRow._meta.db_table
_COLUMNS: Final = ", ".join(COLUMNS)
_TOKENS: Final = tuple(name for name in UsageHour.SUMS if name in COLUMNS)
_values: Final[Callable[[EventRow], tuple[Any, ...]]] = attrgetter(*COLUMNS)
_INCOMING: Final = "metering_incoming"
_SUMS_OF_EVENTS: Final = ", ".join(
    ("count(*)", *(f"sum({name})" for name in _TOKENS), "sum(CASE WHEN estimated THEN 1 ELSE 0 END)")
)
_KEY: Final = "day, tenant, request_id, attempt"
_SUMMED: Final = ", ".join(
    dict.fromkeys((*UsageHour.DIMENSIONS, *_TOKENS, "estimated", "request_id", "attempt", *SOURCES))
)
"""Columns that the sums are made of, and the rest of the unique key."""
EventKey = tuple[str, str, str, int]


def events_insert(rows: Sequence[EventRow]) -> int:
    """Inserts those of `rows` that are not in the table, once each, and sums them; returns how many.

    It runs in the caller's transaction. Raises django.db.DataError for a value that the database refuses.
    """
    if not rows:
        return 0
    if connection.vendor != "postgresql":
        return len(_by_rows(rows))
    return int(_by_copy(rows, "SELECT count(*) FROM fresh")[0][0])


def events_insert_told(rows: Sequence[EventRow]) -> set[EventKey]:
    """As `events_insert`, but returns the keys of the new rows."""
    if not rows:
        return set()
    if connection.vendor != "postgresql":
        return {row.key for row in _by_rows(rows)}
    found = _by_copy(rows, "SELECT day, tenant, request_id, attempt FROM fresh")
    return {(day.isoformat(), *rest) for day, *rest in found}


def summed_from_events(sums: type[UsageRollup | UsageHour], where: str = "true") -> str:
    """Return the SQL that computes the rows of `sums` from the events for which `where` holds."""
    names = ", ".join(sums.DIMENSIONS)
    return f"SELECT {names}, {_SUMS_OF_EVENTS} FROM {_EVENTS} WHERE {where} GROUP BY {names}"  # noqa: S608


def _by_copy(rows: Sequence[EventRow], answer: str) -> list[Any]:
    with connection.cursor() as cursor:
        # Temporary and emptied at each commit, so it writes no WAL.
        cursor.execute(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {_INCOMING} ON COMMIT DELETE ROWS"  # noqa: S608
            f" AS SELECT {_COLUMNS} FROM {_EVENTS} WITH NO DATA"
        )
        # Django wraps the driver's errors for statements only, not for COPY.
        with (
            connection.wrap_database_errors,
            cursor.copy(f"COPY {_INCOMING} ({_COLUMNS}) FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(_values(row))
        cursor.execute(_insert_sql(answer))
        found: list[Any] = cursor.fetchall()
        return found


def _insert_sql(answer: str) -> str:
    """SQL that inserts in one order everywhere, so that two ingesters of the same events cannot deadlock.

    Daily sums are computed from the hourly ones, which are fewer than the events.
    """
    hour, day = ", ".join(UsageHour.DIMENSIONS), ", ".join(UsageRollup.DIMENSIONS)
    again = ", ".join(f"sum({name})" for name in UsageHour.SUMS)
    hourly = f"{upsert_sql(UsageHour)} SELECT * FROM hours {on_conflict_sql(UsageHour)}"  # noqa: S608
    daily = (
        f"{upsert_sql(UsageRollup)} SELECT {day}, {again} FROM hours GROUP BY {day} ORDER BY {day}"  # noqa: S608
        f" {on_conflict_sql(UsageRollup)}"
    )
    return (
        f"WITH fresh AS (INSERT INTO {_EVENTS} ({_COLUMNS}) SELECT {_COLUMNS} FROM {_INCOMING}"  # noqa: S608
        f" ORDER BY {_KEY} ON CONFLICT ({_KEY}) DO NOTHING RETURNING {_SUMMED}),"
        f" hours ({hour}, {', '.join(UsageHour.SUMS)}) AS"
        f" (SELECT {hour}, {_SUMS_OF_EVENTS} FROM fresh GROUP BY {hour} ORDER BY {hour}),"
        f" hourly AS ({hourly}), daily AS ({daily}), {adapter_hours_sql('fresh')} {answer}"
    )


def _by_rows(rows: Sequence[EventRow]) -> list[EventRow]:
    known = set(
        UsageEventRow.objects.filter(
            day__in={row.day for row in rows}, request_id__in=[row.request_id for row in rows]
        ).values_list("day", "tenant", "request_id", "attempt")
    )
    known_keys = {(day.isoformat(), *rest) for day, *rest in known}
    fresh = list({row.key: row for row in reversed(rows) if row.key not in known_keys}.values())
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {_EVENTS} ({_COLUMNS}) VALUES ({_placeholders(len(COLUMNS))})",  # noqa: S608
            # On SQLite, Django stores a UUID as 32 hexadecimal digits.
            [
                _values(replace(row, event_id=row.event_id.replace("-", "")))
                for row in sorted(fresh, key=lambda row: row.key)
            ],
        )
        for sums in (UsageRollup, UsageHour):
            count = len(sums.DIMENSIONS) + len(sums.SUMS)
            cursor.executemany(
                f"{upsert_sql(sums)} VALUES ({_placeholders(count)}) {on_conflict_sql(sums)}",
                _summed(fresh, sums.DIMENSIONS),
            )
    adapter_hours_write(fresh)
    return fresh


def _summed(
    rows: Iterable[EventRow], dimensions: Sequence[str]
) -> list[tuple[str | int | float | None, ...]]:
    group_of = attrgetter(*dimensions)
    sums: dict[tuple[str | int | float | None, ...], list[int]] = {}
    for row in rows:
        totals = sums.setdefault(group_of(row), [0] * len(UsageRollup.SUMS))
        amounts = (1, *(getattr(row, name) for name in _TOKENS), int(row.estimated))
        for index, amount in enumerate(amounts):
            totals[index] += amount
    return [(*key, *amounts) for key, amounts in sums.items()]


def _placeholders(count: int) -> str:
    return ", ".join(["%s"] * count)

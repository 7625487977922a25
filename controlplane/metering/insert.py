"""Writes a batch of usage events that may be known already, and adds the new ones to the sums.

PostgreSQL does it in two statements however large the batch: COPY into a table of the session, then one
that inserts what is new and adds exactly that to both sums. SQLite, which has one writer at a time, is
asked what it knows, and gets the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.db import connection

from controlplane.metering.event_rows import EventRow
from controlplane.metering.models import UsageEventRow, UsageHour, UsageRollup

_EVENTS: Final = UsageEventRow._meta.db_table
_COLUMNS: Final = ", ".join(EventRow._fields)
_INCOMING: Final = "metering_incoming"
_SUMS_OF_EVENTS: Final = (
    "count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),"
    " sum(CASE WHEN estimated THEN 1 ELSE 0 END)"
)
_KEY: Final = "day, tenant, request_id, attempt"
_SUMMED: Final = ", ".join(
    (
        *UsageHour.DIMENSIONS, "prompt_tokens", "cached_tokens", "completion_tokens", "estimated",
        "request_id", "attempt",
    )
)  # fmt: skip
"""What the sums are made of, and with the day and the tenant the key."""
EventKey = tuple[str, str, str, int]


def events_insert(rows: Sequence[EventRow]) -> int:
    """Inserts those of `rows` that the table does not hold, once each, and sums them; returns how many.

    Within the caller's transaction. Raises django.db.DataError for a value that the database refuses.
    """
    if not rows:
        return 0
    if connection.vendor != "postgresql":
        return len(_by_rows(rows))
    return int(_by_copy(rows, "SELECT count(*) FROM fresh")[0][0])


def events_insert_told(rows: Sequence[EventRow]) -> set[EventKey]:
    """As `events_insert`, for who must tell its caller which of them were new: returns their keys."""
    if not rows:
        return set()
    if connection.vendor != "postgresql":
        return {row.key for row in _by_rows(rows)}
    found = _by_copy(rows, "SELECT day, tenant, request_id, attempt FROM fresh")
    return {(day.isoformat(), *rest) for day, *rest in found}


def summed_from_events(sums: type[UsageRollup | UsageHour], where: str = "true") -> str:
    """SQL of what the rows of `sums` should be, by the events for which `where` holds."""
    names = ", ".join(sums.DIMENSIONS)
    return f"SELECT {names}, {_SUMS_OF_EVENTS} FROM {_EVENTS} WHERE {where} GROUP BY {names}"  # noqa: S608


def _by_copy(rows: Sequence[EventRow], answer: str) -> list[Any]:
    with connection.cursor() as cursor:
        # The session's own, emptied at each commit: nothing of it is logged.
        cursor.execute(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {_INCOMING} ON COMMIT DELETE ROWS"  # noqa: S608
            f" AS SELECT {_COLUMNS} FROM {_EVENTS} WITH NO DATA"
        )
        # Django turns the driver's errors into its own in statements alone, not in COPY.
        with (
            connection.wrap_database_errors,
            cursor.copy(f"COPY {_INCOMING} ({_COLUMNS}) FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(row)
        cursor.execute(_insert_sql(answer))
        found: list[Any] = cursor.fetchall()
        return found


def _insert_sql(answer: str) -> str:
    """In one order everywhere, so that two ingesters with the same events never wait for each other.

    The sums by day are made of those by hour, which are fewer than the events.
    """
    hour, day = ", ".join(UsageHour.DIMENSIONS), ", ".join(UsageRollup.DIMENSIONS)
    again = ", ".join(f"sum({name})" for name in UsageHour.SUMS)
    hourly = f"{_upsert_sql(UsageHour)} SELECT * FROM hours {_on_conflict_sql(UsageHour)}"  # noqa: S608
    daily = (
        f"{_upsert_sql(UsageRollup)} SELECT {day}, {again} FROM hours GROUP BY {day} ORDER BY {day}"  # noqa: S608
        f" {_on_conflict_sql(UsageRollup)}"
    )
    return (
        f"WITH fresh AS (INSERT INTO {_EVENTS} ({_COLUMNS}) SELECT {_COLUMNS} FROM {_INCOMING}"  # noqa: S608
        f" ORDER BY {_KEY} ON CONFLICT ({_KEY}) DO NOTHING RETURNING {_SUMMED}),"
        f" hours ({hour}, {', '.join(UsageHour.SUMS)}) AS"
        f" (SELECT {hour}, {_SUMS_OF_EVENTS} FROM fresh GROUP BY {hour} ORDER BY {hour}),"
        f" hourly AS ({hourly}), daily AS ({daily}) {answer}"
    )


def _upsert_sql(sums: type[UsageRollup | UsageHour]) -> str:
    return f"INSERT INTO {sums._meta.db_table} ({', '.join((*sums.DIMENSIONS, *sums.SUMS))})"


def _on_conflict_sql(sums: type[UsageRollup | UsageHour]) -> str:
    # The ORM's upsert overwrites; this one adds. The same text serves SQLite and PostgreSQL.
    table = sums._meta.db_table
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in sums.SUMS)
    return f"ON CONFLICT ({', '.join(sums.DIMENSIONS)}) DO UPDATE SET {added}"


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
            f"INSERT INTO {_EVENTS} ({_COLUMNS}) VALUES ({_places(len(EventRow._fields))})",  # noqa: S608
            # Django keeps a UUID there as 32 digits.
            [(row.event_id.replace("-", ""), *row[1:]) for row in sorted(fresh, key=lambda row: row.key)],
        )
        for sums in (UsageRollup, UsageHour):
            count = len(sums.DIMENSIONS) + len(sums.SUMS)
            cursor.executemany(
                f"{_upsert_sql(sums)} VALUES ({_places(count)}) {_on_conflict_sql(sums)}",
                _summed(fresh, sums.DIMENSIONS),
            )
    return fresh


def _summed(
    rows: Iterable[EventRow], dimensions: Sequence[str]
) -> list[tuple[str | int | float | None, ...]]:
    places = [EventRow._fields.index(name) for name in dimensions]
    sums: dict[tuple[str | int | float | None, ...], list[int]] = {}
    for row in rows:
        key = tuple(row[place] for place in places)
        held = sums.setdefault(key, [0] * 5)
        amounts = (1, row.prompt_tokens, row.cached_tokens, row.completion_tokens, int(row.estimated))
        for index, amount in enumerate(amounts):
            held[index] += amount
    return [(*key, *amounts) for key, amounts in sums.items()]


def _places(count: int) -> str:
    return ", ".join(["%s"] * count)

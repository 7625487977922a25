"""Hourly sums and latency histograms by adapter and copy."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from django.db import connection
from django.db.models import Min

from controlplane.metering.event_rows import EventRow
from controlplane.metering.histogram import bucket_of, bucket_sql
from controlplane.metering.models import AdapterHour, LatencyHour, PendingLatencies, UsageEventRow

KEEP_DAYS: Final = 62
"""Days for which both tables are kept: the longest range that is shown, twice."""
HOURLY_DAYS: Final = 9
"""Days for which histograms are kept by the hour: the longest range that shows parts of days, and more."""
SOURCES: Final = ("adapter", "endpoint", "error_code", "ttft_ms", "itl_ms")
"""Columns of events that both tables are made of, besides those of `UsageHour`."""
_AT_ONCE: Final = 10_000
_METRICS: Final = tuple((metric.value, f"{metric.value}_ms") for metric in LatencyHour.Metric)


def adapter_of(engine_name: str) -> str:
    """Return the adapter's name within an engine name; "" for the base model."""
    return engine_name.partition(".a_")[2].partition(".")[0]


def adapter_sql() -> str:
    """Return the SQL of `adapter_of` for the column `adapter`."""
    if connection.vendor == "postgresql":
        return "split_part(split_part(adapter, '.a_', 2), '.', 1)"
    rest = "substr(adapter, instr(adapter, '.a_') + 3)"
    return f"substr({rest}, 1, instr({rest}, '.') - 1)"


def sums_sql(source: str, *more: str) -> str:
    """Return the SQL that computes the rows of `AdapterHour`, with columns `more`, from events `source`."""
    amounts = ", ".join((*(f"sum({name})" for name in AdapterHour.SUMS[1:]), *more))
    columns = ", ".join(adapter_sql() if name == "adapter" else name for name in AdapterHour.DIMENSIONS)
    return (
        f"SELECT {columns}, count(*), {amounts} FROM {source} WHERE adapter <> ''"  # noqa: S608  # names of ours
        f" GROUP BY {columns}"
    )


def adapter_hours_sql(source: str) -> str:
    """Return PostgreSQL's common table expressions that count the events of the expression `source`.

    Sums are added at once. Latencies are left in `PendingLatencies`: adding them here as well, hundreds of
    rows for an adapter's events, took three times as long as the rest of the ingestion.
    """
    names = ", ".join((*AdapterHour.DIMENSIONS, *AdapterHour.SUMS))
    times = ", ".join(metric for metric, _ in _METRICS)
    buckets = (
        # GREATEST overlooks nulls.
        f"coalesce(string_agg({bucket_sql(column)}::text, ',') FILTER (WHERE {column} IS NOT NULL), '')"
        for _, column in _METRICS
    )
    pending = ", ".join(("day", "hour", "tenant", "adapter", "endpoint", times))
    # One order everywhere, so that two ingesters of the same adapters' events cannot deadlock.
    return (
        f"by_adapter ({names}, {times}) AS MATERIALIZED ({sums_sql(source, *buckets)}),"  # noqa: S608
        f" adapter_hours AS ({upsert_sql(AdapterHour)} SELECT {names} FROM by_adapter"
        f" ORDER BY tenant, adapter, day, hour, endpoint, status, error_code {on_conflict_sql(AdapterHour)}),"
        f" latencies AS (INSERT INTO {PendingLatencies._meta.db_table} ({pending})"
        f" SELECT {pending} FROM by_adapter WHERE concat({times}) <> '')"
    )


def latency_hours_add_pending() -> int:
    """Adds what ingestion left in `PendingLatencies` to `LatencyHour`; returns how many rows it took."""
    if connection.vendor != "postgresql":
        return 0
    statement, taken = _add_pending_sql(), 0
    with connection.cursor() as cursor:
        while True:
            # Statement by statement, so that a long outage leaves no single huge one behind.
            cursor.execute(statement, [_AT_ONCE])
            count = int(cursor.fetchone()[0])
            taken += count
            if count < _AT_ONCE:
                return taken


def upsert_sql(table: Any) -> str:
    """Return the start of a statement that adds sums to a table."""
    return f"INSERT INTO {table._meta.db_table} ({', '.join((*table.DIMENSIONS, *table.SUMS))})"


def on_conflict_sql(table: Any) -> str:
    """Return the end of a statement that adds sums to a table: the ORM's upsert overwrites, this one adds."""
    name = table._meta.db_table
    added = ", ".join(f"{column} = {name}.{column} + excluded.{column}" for column in table.SUMS)
    return f"ON CONFLICT ({', '.join(table.DIMENSIONS)}) DO UPDATE SET {added}"


def adapter_hours_write(rows: Iterable[EventRow]) -> None:
    """Adds events to both tables, one row after the other; for SQLite."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    times = Counter[tuple[Any, ...]]()
    for row in rows:
        if not row.adapter:
            continue
        where = (row.day, row.hour, row.tenant, adapter_of(row.adapter), row.endpoint)
        held = sums.setdefault((*where, row.status, row.error_code), [0] * len(AdapterHour.SUMS))
        for index, amount in enumerate((1, row.prompt_tokens, row.cached_tokens, row.completion_tokens)):
            held[index] += amount
        for metric, column in _METRICS:
            if (milliseconds := getattr(row, column)) is not None:
                times[*where, metric, bucket_of(milliseconds)] += 1
    with connection.cursor() as cursor:
        for table, values in (
            (AdapterHour, [(*key, *held) for key, held in sums.items()]),
            (LatencyHour, [(*key, count) for key, count in times.items()]),
        ):
            holes = ", ".join(["%s"] * (len(table.DIMENSIONS) + len(table.SUMS)))
            cursor.executemany(f"{upsert_sql(table)} VALUES ({holes}) {on_conflict_sql(table)}", values)


def _add_pending_sql() -> str:
    pending, rest = PendingLatencies._meta.db_table, ", ".join(LatencyHour.DIMENSIONS)
    metrics = ", ".join(f"('{metric}', {metric})" for metric, _ in _METRICS)
    return (
        f"WITH taken AS (DELETE FROM {pending} WHERE id IN (SELECT id FROM {pending} LIMIT %s"  # noqa: S608
        f" FOR UPDATE SKIP LOCKED) RETURNING *),"
        f" added AS ({upsert_sql(LatencyHour)} SELECT {rest}, count(*) FROM taken,"
        f" LATERAL (VALUES {metrics}) AS metrics (metric, buckets),"
        f" LATERAL unnest(string_to_array(buckets, ',')::smallint[]) AS bucket"
        f" GROUP BY {rest} ORDER BY tenant, adapter, day, hour, endpoint, metric, bucket"
        f" {on_conflict_sql(LatencyHour)}) SELECT count(*) FROM taken"
    )


def latency_hours_compact(*, today: dt.date) -> None:
    """Adds up the hours of days that are shown as days alone, on PostgreSQL: a month is then read quickly."""
    if connection.vendor != "postgresql":
        return
    table, rest = LatencyHour._meta.db_table, "tenant, adapter, endpoint, metric, bucket"
    moved = f"DELETE FROM {table} WHERE day < %s AND hour > 0 RETURNING day, {rest}, requests"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH moved AS ({moved}) {upsert_sql(LatencyHour)}"  # noqa: S608  # names of ours
            f" SELECT day, 0, {rest}, sum(requests) FROM moved GROUP BY day, {rest}"
            f" ORDER BY day, {rest} {on_conflict_sql(LatencyHour)}",
            [today - dt.timedelta(days=HOURLY_DAYS)],
        )


def adapter_hours_drop_old(*, today: dt.date) -> int:
    """Deletes what is older than KEEP_DAYS; returns how many rows."""
    before = today - dt.timedelta(days=KEEP_DAYS)
    return sum(table.objects.filter(day__lt=before).delete()[0] for table in (AdapterHour, LatencyHour))


def adapter_hours_complete(*, day: dt.date) -> bool:
    """Return whether `AdapterHour` was written for the whole UTC day.

    It holds nothing of events before its introduction, so its first day can lack events.
    """
    first: dt.date | None = AdapterHour.objects.aggregate(first=Min("day"))["first"]
    return first is not None and day > first


def adapter_sums_differ(*, day: dt.date) -> list[tuple[Any, ...]]:
    """Return the rows of `AdapterHour` of a UTC day that differ from its events, held or expected."""
    names = ", ".join((*AdapterHour.DIMENSIONS, *AdapterHour.SUMS))
    held = f"SELECT {names} FROM {AdapterHour._meta.db_table} WHERE day = %s"  # noqa: S608  # names of ours
    events = f"(SELECT * FROM {UsageEventRow._meta.db_table} WHERE day = %s) AS events"  # noqa: S608
    expected = sums_sql(events)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT * FROM (SELECT * FROM ({held}) h EXCEPT SELECT * FROM ({expected}) e) a UNION ALL"  # noqa: S608
            f" SELECT * FROM (SELECT * FROM ({expected}) e EXCEPT SELECT * FROM ({held}) h) b",
            [str(day)] * 4,
        )
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found

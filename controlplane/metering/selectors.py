"""Reads usage events and their sums."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import orjson
from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BigIntegerField, F, Q, QuerySet, Sum
from django.db.models.functions import Cast, Coalesce

from controlplane.metering.models import UNANSWERED, DeadUsageEvent, UsageEventRow, UsageHour, UsageRollup


def rollup_list(*, tenant: str | None, start: dt.date, end: dt.date) -> QuerySet[UsageRollup]:
    """Return rollups of the UTC days `start` to `end`, both included, of a tenant or (None) of all."""
    rollups = UsageRollup.objects.filter(day__range=(start, end))
    return rollups if tenant is None else rollups.filter(tenant=tenant)


def usage_exists(*, tenant: str) -> bool:
    """Return True if the tenant ever sent a request; rollups outlive single events."""
    return UsageRollup.objects.filter(tenant=tenant).exists()


def usage_by_tenant(*, tenants: Collection[str], after: dt.date) -> dict[str, dict[str, Any]]:
    """Sum `asked`, `tokens` and `failed` requests after a UTC day, by tenant. One query."""
    rollups = UsageRollup.objects.filter(tenant__in=tenants, day__gt=after).order_by()
    totals = rollups.values("tenant").annotate(
        asked=Sum("requests"),
        tokens=Sum("prompt_tokens") + Sum("completion_tokens"),
        failed=Sum("requests", filter=Q(status="error")),
    )
    return {row["tenant"]: dict(row) for row in totals}


def usage_by_day(*, start: dt.date, end: dt.date) -> dict[dt.date, dict[str, int]]:
    """Return all tenants' sums `asked`, `tokens` and `failed` by UTC day. One query."""
    rows = UsageRollup.objects.filter(day__range=(start, end)).order_by().values_list("day")
    sums = rows.annotate(
        asked=Sum("requests"),
        tokens=Sum("prompt_tokens") + Sum("completion_tokens"),
        failed=Coalesce(Sum("requests", filter=Q(status="error")), 0),
    )
    return {
        day: {"asked": int(asked), "tokens": int(tokens), "failed": int(failed)}
        for day, asked, tokens, failed in sums
    }


def hour_list(*, tenant: str | None, start: dt.date, end: dt.date) -> QuerySet[UsageHour]:
    """As `rollup_list`, but hourly sums."""
    hours = UsageHour.objects.filter(day__range=(start, end))
    return hours if tenant is None else hours.filter(tenant=tenant)


def dead_letter_list() -> QuerySet[DeadUsageEvent]:
    """Dead letters, newest first."""
    return DeadUsageEvent.objects.order_by("-pk")


class SummedUse(NamedTuple):
    """Sums of rows with equal values in the requested columns; other columns are empty.

    `answered` are the requests that did not end in an error: only these are charged the price per request.
    """

    day: dt.date
    tenant: str
    hour: int = 0
    project: str = ""
    key_id: str = ""
    adapter: str = ""
    alias: str = ""
    arm: str = ""
    base_model: str = ""
    operation: str = ""
    backend: str = ""
    status: str = ""
    requests: int = 0
    answered: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    images: int = 0


_SUMS = {
    "requests": Sum("requests"),
    # Counted here, so that pricing requests does not need a row per status.
    "answered": Coalesce(Sum("requests", filter=~Q(status__in=UNANSWERED)), 0),
    "prompt_tokens": Sum("prompt_tokens"),
    "cached_tokens": Sum("cached_tokens"),
    "completion_tokens": Sum("completion_tokens"),
    "reasoning_tokens": Sum("reasoning_tokens"),
    "images": Sum("images"),
}


class _Int(Cast):
    """A sum cast to bigint in PostgreSQL, which would return it as numeric, and so as a Decimal.

    Converting those in Python took a third of a long report's time.
    """

    def get_db_converters(self, connection: BaseDatabaseWrapper) -> list[Any]:
        return []


def use_summed(
    sums: QuerySet[UsageRollup] | QuerySet[UsageHour], *, by: Iterable[str]
) -> Iterator[SummedUse]:
    """Yield `sums` added up by the database, by day, tenant and the columns `by`.

    A report of a few columns reads fewer rows this way, and none of them as a model object.
    """
    columns = list(dict.fromkeys(("day", "tenant", *by)))
    # Fields are picked by index, which takes a third of the time by name, for tens of thousands of rows.
    names = [*columns, *_SUMS]
    rest = tuple(SummedUse._field_defaults.get(name) for name in SummedUse._fields)
    indexes = [
        names.index(name) if name in names else len(names) + index
        for index, name in enumerate(SummedUse._fields)
    ]
    take = operator.itemgetter(*indexes)
    for row in _added_up(sums, columns):
        yield SummedUse._make(take(row + rest))


def use_columns(
    sums: QuerySet[UsageRollup] | QuerySet[UsageHour], *, by: Iterable[str], most: int
) -> dict[str, Sequence[Any]]:
    """Return `sums` added up by the database by the columns `by`, as columns of `by` and of `SummedUse`.

    It is for reports of so many rows that an object for each would take most of the time. The database writes
    each column as one JSON array: 18,000 rows then took a quarter of the time that they took row by row.

    Args:
        most: most rows to read, in no particular order.
    """
    columns = list(dict.fromkeys(by))
    names = [*columns, *_SUMS]
    try:
        inner, values = _added_up(sums, columns)[:most].query.sql_with_params()
    except EmptyResultSet:
        # A filter that can match nothing, such as an empty `IN`, makes no SQL.
        return dict.fromkeys(names, ())
    connection = connections[sums.db]
    array = "json_agg" if connection.vendor == "postgresql" else "json_group_array"
    selected = ", ".join(
        f"CAST({array}({connection.ops.quote_name(name)}) AS text)"
        for name in (*columns, *(f"total_{name}" for name in _SUMS))
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {selected} FROM ({inner}) added_up", values)  # noqa: S608  # names of columns
        row = cursor.fetchone()
    # Without rows, PostgreSQL returns NULL instead of an array.
    found: dict[str, Sequence[Any]] = {
        name: orjson.loads(text or "[]") for name, text in zip(names, row, strict=True)
    }
    if "day" in found:
        days = {text: dt.date.fromisoformat(text) for text in set(found["day"])}
        found["day"] = list(map(days.__getitem__, found["day"]))
    return found


def amount_by(
    sums: QuerySet[UsageRollup] | QuerySet[UsageHour], *, by: str, amount: Sequence[str], most: int
) -> list[tuple[str, int]]:
    """Return the sum of the columns `amount`, by one column; at most `most` rows, in no particular order."""
    together = reduce(operator.add, (F(name) for name in amount))
    rows = sums.order_by().values(by).annotate(total=_Int(Sum(together), BigIntegerField()))
    return list(rows.values_list(by, "total")[:most])


def _added_up(sums: QuerySet[Any], columns: list[str]) -> QuerySet[Any, tuple[Any, ...]]:
    totals = {f"total_{name}": _Int(total, BigIntegerField()) for name, total in _SUMS.items()}
    # Not with a server-side cursor, which would hold the result and deliver it in parts.
    rows = sums.order_by().values(*columns).annotate(**totals)
    found: QuerySet[Any, tuple[Any, ...]] = rows.values_list(*columns, *totals)
    return found


def arm_attempts(*, tenant: str, alias: str, adapter: str, since: dt.datetime) -> QuerySet[UsageEventRow]:
    """Attempts of a split alias on one arm since then; `adapter` is the arm's engine name."""
    # Repeat the partial index's condition on `arm`, so that SQLite uses it too.
    rows = UsageEventRow.objects.filter(tenant=tenant, adapter=adapter, arm__gt="", alias=alias)
    # Also filter by day, so that PostgreSQL prunes partitions; one day more for gateways' clocks.
    rows = rows.filter(day__gte=since.astimezone(dt.UTC).date() - dt.timedelta(days=1))
    return rows.filter(started_at__gte=int(since.timestamp() * 1000))


def copy_attempts(
    *, copies: Iterable[str], since: dt.datetime, until: dt.datetime | None = None
) -> QuerySet[UsageEventRow]:
    """Attempts on copies with these ids from `since` on, and before `until`."""
    # Also filter by day, as in `arm_attempts`.
    rows = UsageEventRow.objects.filter(day__gte=since.astimezone(dt.UTC).date() - dt.timedelta(days=1))
    rows = rows.filter(endpoint__in=sorted(copies), started_at__gte=int(since.timestamp() * 1000))
    return rows if until is None else rows.filter(started_at__lt=int(until.timestamp() * 1000))


def latencies_ms(answered: QuerySet[UsageEventRow], *, most: int) -> list[float]:
    """Return latencies of the newest `most` attempts: to the first token, or to the end without streaming."""
    timed = answered.annotate(latency=Coalesce("ttft_ms", "duration_ms")).order_by("-started_at")
    return list(timed.values_list("latency", flat=True)[:most])

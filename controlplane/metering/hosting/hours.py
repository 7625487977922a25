"""Adds spans to the hourly sums: each second of a span once, even if a run crashes."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import F, Q

from controlplane.metering.models import HostingHour, HostingSpan

HOUR: Final = 3600
_DAY: Final = 86_400
_EPOCH: Final = dt.date(1970, 1, 1)
_BATCH: Final = 1000
_TABLE: Final = HostingHour._meta.db_table
_NAMES: Final = ("day", "hour", *HostingHour.DIMENSIONS)


def hours_of(start: int, end: int) -> Iterator[tuple[dt.date, int, int]]:
    """Yield the UTC day, hour and seconds of each hour that [start, end) covers; Unix seconds.

    Every UTC hour has 3,600 seconds: Unix time has no zones and no leap seconds.
    """
    cursor = start
    while cursor < end:
        after = min(end, cursor // HOUR * HOUR + HOUR)
        yield _EPOCH + dt.timedelta(days=cursor // _DAY), cursor % _DAY // HOUR, after - cursor
        cursor = after


def spans_count(*, now: int) -> int:
    """Adds uncounted time to the sums: all of closed spans, and the completed hours of open ones.

    Returns how many spans were counted. A batch's sums and its marks are committed together.
    """
    counted = 0
    while batch := _count_some(now // HOUR * HOUR):
        counted += batch
    return counted


def spans_drop_old(*, before: int) -> int:
    """Deletes counted spans that ended before then (Unix seconds); returns how many."""
    ended = HostingSpan.objects.filter(ended_at__lt=before, counted_to__gte=F("ended_at"))
    return ended.delete()[0]


@transaction.atomic
def _count_some(full: int) -> int:
    due = Q(ended_at=None, counted_to__lt=full) | Q(counted_to__lt=F("ended_at"))
    spans = list(
        HostingSpan.objects.select_for_update(skip_locked=connection.vendor == "postgresql")
        .filter(due)
        .order_by("pk")[:_BATCH]
    )
    sums: dict[tuple[Any, ...], int] = defaultdict(int)
    for span in spans:
        until = full if span.ended_at is None else span.ended_at
        names = tuple(getattr(span, name) for name in HostingHour.DIMENSIONS)
        for day, hour, seconds in hours_of(span.counted_to, until):
            sums[day.isoformat(), hour, *names] += span.quantity * seconds
        span.counted_to = until
    _add(sums)
    HostingSpan.objects.bulk_update(spans, ["counted_to"], batch_size=200)
    return len(spans)


def _add(sums: dict[tuple[Any, ...], int]) -> None:
    columns = ", ".join((*_NAMES, "quantity_seconds"))
    places = ", ".join(["%s"] * (len(_NAMES) + 1))
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {_TABLE} ({columns}) VALUES ({places}) ON CONFLICT ({', '.join(_NAMES)})"  # noqa: S608
            f" DO UPDATE SET quantity_seconds = {_TABLE}.quantity_seconds + excluded.quantity_seconds",
            # One order everywhere, so that concurrent runs cannot deadlock.
            [(*key, amount) for key, amount in sorted(sums.items())],
        )

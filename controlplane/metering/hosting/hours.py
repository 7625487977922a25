"""Adds spans to the sums by hour: each second of each span once, whoever dies on the way."""

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
    """UTC day, hour and seconds of each hour that [start, end) reaches into; Unix seconds.

    Every UTC hour has 3,600 of them: Unix time knows no zones and no leap seconds.
    """
    at = start
    while at < end:
        after = min(end, at // HOUR * HOUR + HOUR)
        yield _EPOCH + dt.timedelta(days=at // _DAY), at % _DAY // HOUR, after - at
        at = after


def spans_count(*, now: int) -> int:
    """Adds what is not in the sums yet: of closed spans all, of open ones the hours that are over.

    Returns how many spans that was. A batch's sums and its marks are of one transaction.
    """
    counted = 0
    while batch := _count_some(now // HOUR * HOUR):
        counted += batch
    return counted


def spans_drop_old(*, before: int) -> int:
    """Removes spans that ended before then (Unix seconds) and are in the sums; returns how many."""
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
            # In one order everywhere, so that two of these never wait for each other.
            [(*key, amount) for key, amount in sorted(sums.items())],
        )

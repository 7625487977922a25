"""Metrics of adapters over time: requests, errors, tokens and latency, in total, by slot, copy or adapter.

Ranges of a day and longer are read from the hourly tables, whose size depends on time and not on requests.
The last hour is read from the events, through the index on tenant and event id.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import Count, F, FloatField, IntegerField, Q, QuerySet, Sum
from django.db.models.functions import Cast, Floor

from controlplane.errors import InvalidInputError
from controlplane.metering.adapter_hours import adapter_of
from controlplane.metering.histogram import bucket_expression, percentile_ms
from controlplane.metering.models import AdapterHour, LatencyHour, UsageEventRow
from controlplane.metering.requests import first_id

LONGEST_REQUEST: Final = dt.timedelta(hours=1)
"""Of requests that run longer, live metrics know nothing: events are found by the start of their request."""
PERCENTILES: Final = (50, 95, 99)
FAILED: Final = frozenset({"error", "interrupted"})
"""Statuses of attempts that count as errors: the copy or the gateway failed, timeouts included."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A selectable range: `slots` slots of `slot` each, up to the present one.

    Attributes:
        live: read from the events, where a request counts when it ends. Otherwise it is read from hourly
            sums, where a request counts in the hour in which it began.
    """

    name: str
    slot: dt.timedelta
    slots: int
    live: bool = False

    def start(self, now: dt.datetime) -> dt.datetime:
        """Return the beginning of the first slot; slots begin at multiples of their length (UTC)."""
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        return epoch + (now - epoch) // self.slot * self.slot - self.slot * (self.slots - 1)


RANGES: Final = {
    item.name: item
    for item in (
        TimeRange("hour", dt.timedelta(minutes=1), 60, live=True),
        TimeRange("day", dt.timedelta(hours=1), 24),
        TimeRange("week", dt.timedelta(hours=6), 28),
        TimeRange("month", dt.timedelta(days=1), 30),
    )
}


@dataclass(slots=True)
class Metrics:
    """Metrics of attempts. Each retry or fallback of a request is an attempt of its own.

    Attributes:
        errors: failed attempts by error code; client_errors: attempts that failed because the request was
            invalid, the same.
        cancelled: attempts that the client cancelled.
        ttft, itl: histograms of the time to first token and of the mean inter-token latency of an attempt.
    """

    requests: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    client_errors: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ttft: Counter[int] = field(default_factory=Counter)
    itl: Counter[int] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        return self.errors.total()

    @property
    def error_rate(self) -> float | None:
        """Failed attempts in percent of all; None without any."""
        return 100 * self.failed / self.requests if self.requests else None

    def percentile_ms(self, metric: str, percent: int) -> float | None:
        """Return a percentile of `ttft` or `itl`, within 2 percent; None without measurements."""
        return percentile_ms(getattr(self, metric), percent / 100)

    def add(self, other: Metrics) -> None:
        """Add another's attempts."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def count(self, row: Mapping[str, Any]) -> None:
        """Add a group of attempts with one status and error code."""
        self.requests += row["total"]
        if row["status"] in FAILED:
            self.errors[row["error_code"]] += row["total"]
        elif row["status"] == "client_error":
            self.client_errors[row["error_code"]] += row["total"]
        elif row["status"] == "cancelled":
            self.cancelled += row["total"]
        self.prompt_tokens += row["prompt"]
        self.cached_tokens += row["cached"]
        self.completion_tokens += row["completion"]

    def count_times(self, row: Mapping[str, Any]) -> None:
        """Add a bucket of one of the histograms."""
        getattr(self, row["metric"])[row["bucket"]] += row["total"]


@dataclass(frozen=True, slots=True)
class AdapterMetrics:
    """One adapter's metrics in a range. `over_time` has the beginning of each slot, oldest first."""

    span: TimeRange
    start: dt.datetime
    total: Metrics
    over_time: list[tuple[dt.datetime, Metrics]]
    by_copy: dict[str, Metrics]


def range_named(name: str) -> TimeRange:
    """Return a range by name. Raises InvalidInputError."""
    if name not in RANGES:
        raise InvalidInputError(f"range must be one of {', '.join(RANGES)}", field="range")
    return RANGES[name]


def adapter_metrics(*, tenant: str, adapter: str, span: TimeRange, now: dt.datetime) -> AdapterMetrics:
    """Return one adapter's metrics, in two queries, or three of events."""
    source = _source(tenant, span, now, [adapter])
    start = span.start(now)
    slots = [Metrics() for _ in range(span.slots)]
    copies: dict[str, Metrics] = defaultdict(Metrics)
    for row in source.sums("slot", "copy"):
        for metrics in (slots[row["slot"]], copies[row["copy"]]):
            metrics.count(row)
    for row in source.times("slot", "copy"):
        for metrics in (slots[row["slot"]], copies[row["copy"]]):
            metrics.count_times(row)
    total = Metrics()
    for metrics in slots:
        total.add(metrics)
    over_time = [(start + span.slot * number, metrics) for number, metrics in enumerate(slots)]
    ranked = sorted(copies.items(), key=lambda item: (-item[1].requests, item[0]))
    return AdapterMetrics(span, start, total, over_time, dict(ranked))


def metrics_by_adapter(
    *, tenant: str, adapters: Collection[str], span: TimeRange, now: dt.datetime
) -> dict[str, Metrics]:
    """Return the metrics of these adapters of a tenant by name, in two queries; all have an entry."""
    found = {name: Metrics() for name in adapters}
    source = _source(tenant, span, now, adapters)
    for row in source.sums("adapter"):
        found[row["adapter"]].count(row)
    for row in source.times("adapter"):
        found[row["adapter"]].count_times(row)
    return found


class _Hours:
    """Rows of the hourly tables, summed by the database."""

    def __init__(self, tenant: str, adapters: Collection[str], span: TimeRange, start: dt.datetime) -> None:
        self._where = Q(tenant=tenant, adapter__in=adapters) & (
            Q(day__gt=start.date()) | Q(day=start.date(), hour__gte=start.hour)
        )
        self._span, self._start = span, start
        slot_hours = int(span.slot.total_seconds()) // 3600
        self._part = F("hour") / slot_hours
        """Number of the slot within its day: a division of integers."""

    def sums(self, *by: str) -> Iterator[dict[str, Any]]:
        rows = AdapterHour.objects.filter(self._where).order_by().annotate(part=self._part)
        totals = rows.values(*_columns(_HOURLY, by), "status", "error_code").annotate(
            total=Sum("requests"),
            prompt=Sum("prompt_tokens"),
            cached=Sum("cached_tokens"),
            completion=Sum("completion_tokens"),
        )
        yield from self._named(totals, by)

    def times(self, *by: str) -> Iterator[dict[str, Any]]:
        rows = LatencyHour.objects.filter(self._where).order_by().annotate(part=self._part)
        buckets = rows.values(*_columns(_HOURLY, by), "metric", "bucket").annotate(total=Sum("requests"))
        yield from self._named(buckets, by)

    def _named(self, rows: Iterable[dict[str, Any]], by: Sequence[str]) -> Iterator[dict[str, Any]]:
        for row in rows:
            if "slot" in by:
                at = dt.datetime.combine(row["day"], dt.time(), dt.UTC) + self._span.slot * row["part"]
                # The event of a gateway whose clock is ahead counts in the last slot.
                row["slot"] = min((at - self._start) // self._span.slot, self._span.slots - 1)
            row["copy"] = row.get("endpoint")
            yield row


class LiveEvents:
    """Events of attempts that ended in [start, end), summed by the database in slots of equal length."""

    def __init__(self, where: Q, *, start: dt.datetime, end: dt.datetime, slot: dt.timedelta) -> None:
        """Sum the events for which `where` holds, which has to restrict them by an index."""
        begin_ms, slot_ms = start.timestamp() * 1000, slot.total_seconds() * 1000
        self._rows: QuerySet[UsageEventRow] = (
            # The filter on days limits PostgreSQL to their partitions.
            UsageEventRow.objects.filter(
                where, day__range=((start - LONGEST_REQUEST).date(), end.date() + dt.timedelta(days=1))
            )
            .annotate(ended=Cast("started_at", FloatField()) + F("duration_ms"))
            .filter(ended__gte=begin_ms, ended__lt=end.timestamp() * 1000)
            .annotate(slot=Cast(Floor((F("ended") - begin_ms) / slot_ms), IntegerField()))
            .order_by()
        )

    def sums(self, *by: str) -> Iterator[dict[str, Any]]:
        """Yield attempts and tokens by status, error code and the columns `by`."""
        yield from self._rows.values(*by, "status", "error_code").annotate(
            total=Count("*"),
            prompt=Sum("prompt_tokens"),
            cached=Sum("cached_tokens"),
            completion=Sum("completion_tokens"),
        )

    def times(self, *by: str) -> Iterator[dict[str, Any]]:
        """Yield histograms' buckets by metric and the columns `by`."""
        for metric in LatencyHour.Metric:
            column = f"{metric.value}_ms"
            timed = self._rows.filter(**{f"{column}__isnull": False})
            buckets = timed.annotate(bucket=bucket_expression(column)).values(*by, "bucket")
            for row in buckets.annotate(total=Count("*")):
                yield {**row, "metric": metric.value}


class _LastHour:
    """The last hour's events of some adapters."""

    def __init__(self, tenant: str, adapters: Collection[str], span: TimeRange, start: dt.datetime) -> None:
        self._last, self._adapters = span.slots - 1, adapters
        end = start + span.slot * span.slots
        where = events_of_tenant(tenant, start=start, end=end) & Q(adapter__gt="")
        if len(adapters) == 1:
            where &= Q(adapter__startswith=f"t_{tenant}.a_{next(iter(adapters))}.")
        self._events = LiveEvents(where, start=start, end=end, slot=span.slot)

    def sums(self, *by: str) -> Iterator[dict[str, Any]]:
        yield from self._named(self._events.sums(*_columns(_EVENTS, by)))

    def times(self, *by: str) -> Iterator[dict[str, Any]]:
        yield from self._named(self._events.times(*_columns(_EVENTS, by)))

    def _named(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            row["copy"] = row.get("endpoint")
            if "slot" in row:
                row["slot"] = min(row["slot"], self._last)
            if "adapter" in row:
                row["adapter"] = adapter_of(row["adapter"])
                if row["adapter"] not in self._adapters:
                    continue
            yield row


_HOURLY: Final = {"slot": ("day", "part"), "copy": ("endpoint",), "adapter": ("adapter",)}
_EVENTS: Final = {"slot": ("slot",), "copy": ("endpoint",), "adapter": ("adapter",)}
"""Columns by which rows are summed, of the hourly tables and of events."""


def _columns(named: Mapping[str, Sequence[str]], by: Sequence[str]) -> list[str]:
    return [column for name in by for column in named[name]]


def events_of_tenant(tenant: str, *, start: dt.datetime, end: dt.datetime) -> Q:
    """Return a filter by index on a tenant's events that can end in [start, end)."""
    return Q(tenant=tenant, event_id__gte=first_id(start - LONGEST_REQUEST), event_id__lt=first_id(end))


def _source(tenant: str, span: TimeRange, now: dt.datetime, adapters: Collection[str]) -> _Hours | _LastHour:
    kind = _LastHour if span.live else _Hours
    return kind(tenant, adapters, span, span.start(now))

"""Metrics of adapters: sums and percentiles over time, by copy and by adapter."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from contracts.usage_event import UsageEvent
from controlplane.errors import InvalidInputError
from controlplane.metering.adapter_hours import (
    HOURLY_DAYS,
    KEEP_DAYS,
    adapter_hours_drop_old,
    adapter_of,
    adapter_sums_differ,
    latency_hours_compact,
)
from controlplane.metering.adapter_metrics import RANGES, adapter_metrics, metrics_by_adapter, range_named
from controlplane.metering.histogram import ERROR, bucket_ms, bucket_of, percentile_ms
from controlplane.metering.models import AdapterHour, LatencyHour, PendingLatencies
from controlplane.metering.services import usage_ingest
from controlplane.metering.tasks import add_latencies
from tests.controlplane.known import known
from tests.controlplane.monitoring.traffic import attempt, engine, entries, ingest

NOW = dt.datetime.now(dt.UTC).replace(minute=30, second=0, microsecond=0)
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def names(db: None) -> None:
    known("tiny-base", tenants=("acme", "globex"))


def drawn(count: int, seed: int = 7) -> tuple[list[float], list[float]]:
    """Times to first token (two modes and a tail) and inter-token latencies, as services have them."""
    draw = np.random.default_rng(seed)
    ttft = np.concatenate(
        [draw.lognormal(4.5, 0.5, count // 2), draw.lognormal(6.5, 0.3, count - count // 2)]
    )
    return [float(x) for x in ttft], [float(x) for x in draw.lognormal(3.0, 0.2, count)]


def nearest_rank(values: list[float], percent: int) -> float:
    return float(np.percentile(values, percent, method="inverted_cdf"))


@pytest.mark.parametrize("percent", [1, 50, 95, 99, 100])
@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 1000])
def test_a_histogram_s_percentile_is_numpy_s_within_its_bound(count: int, percent: int) -> None:
    values, _ = drawn(count)
    counts: dict[int, int] = {}
    for value in values:
        counts[bucket_of(value)] = counts.get(bucket_of(value), 0) + 1
    found = percentile_ms(counts, percent / 100)
    assert found == pytest.approx(nearest_rank(values, percent), rel=ERROR + 1e-4)


def test_an_empty_histogram_has_no_percentile() -> None:
    assert percentile_ms({}, 0.95) is None


@pytest.mark.parametrize("milliseconds", [-5.0, 0.0, 0.05, 0.1, 0.11, 1.0, 99.9, 3.6e6])
def test_every_duration_has_a_bucket_that_stands_for_it(milliseconds: float) -> None:
    bucket = bucket_of(milliseconds)
    assert 0 <= bucket < 1 << 15
    assert bucket_ms(bucket) == pytest.approx(max(milliseconds, 0.1), rel=ERROR + 1e-9)


def spread(ttft: list[float], itl: list[float], start: dt.datetime, every: dt.timedelta) -> list[UsageEvent]:
    return [
        attempt(start + every * number, endpoint=f"copy-{number % 3}", ttft_ms=first, itl_ms=between)
        for number, (first, between) in enumerate(zip(ttft, itl, strict=True))
    ]


@pytest.mark.parametrize(("name", "every"), [("hour", 5), ("day", 120), ("week", 800), ("month", 3600)])
def test_each_range_has_numpy_s_percentiles_in_total_over_time_and_by_copy(name: str, every: int) -> None:
    count = 500
    ttft, itl = drawn(count)
    span = RANGES[name]
    start = NOW - dt.timedelta(seconds=every) * count
    events = spread(ttft, itl, start, dt.timedelta(seconds=every))
    assert ingest(events) == count
    found = adapter_metrics(tenant="acme", adapter="support-bot", span=span, now=NOW)
    assert found.total.requests == count
    assert (found.total.prompt_tokens, found.total.completion_tokens) == (10 * count, 6 * count)
    for percent in (50, 95, 99):
        for metric, values in (("ttft", ttft), ("itl", itl)):
            expected = nearest_rank(values, percent)
            assert found.total.percentile_ms(metric, percent) == pytest.approx(expected, rel=ERROR + 1e-4)
            for copy in range(3):
                expected = nearest_rank(values[copy::3], percent)
                of_copy = found.by_copy[f"copy-{copy}"].percentile_ms(metric, percent)
                assert of_copy == pytest.approx(expected, rel=ERROR + 1e-4)
    assert len(found.over_time) == span.slots
    for at, metrics in found.over_time:
        # The last hour counts a request when it ends, a second after its start.
        shift = dt.timedelta(seconds=1) if span.live else dt.timedelta(0)
        begun = [start + dt.timedelta(seconds=every) * number + shift for number in range(count)]
        inside = [ttft[number] for number, when in enumerate(begun) if at <= when < at + span.slot]
        assert metrics.requests == len(inside)
        if inside:
            expected = nearest_rank(inside, 95)
            assert metrics.percentile_ms("ttft", 95) == pytest.approx(expected, rel=ERROR + 1e-4)


@pytest.mark.parametrize("name", ["hour", "day"])
def test_errors_are_told_apart_by_kind_and_who_is_at_fault(name: str) -> None:
    at = NOW - dt.timedelta(minutes=5)
    outcomes = [
        *[("error", "upstream_timeout")] * 3,
        ("error", "upstream_refused"),
        *[("client_error", "invalid_request")] * 2,
        ("cancelled", ""),
        ("interrupted", "gateway_died"),
        *[("ok", "")] * 12,
    ]
    ingest(attempt(at, status=status, error_code=code) for status, code in outcomes)
    total = adapter_metrics(tenant="acme", adapter="support-bot", span=RANGES[name], now=NOW).total
    assert dict(total.errors) == {"upstream_timeout": 3, "upstream_refused": 1, "gateway_died": 1}
    assert dict(total.client_errors) == {"invalid_request": 2}
    assert (total.requests, total.failed, total.cancelled, total.error_rate) == (20, 5, 1, 25.0)


@pytest.mark.parametrize("name", RANGES)
def test_other_tenants_adapters_and_base_models_do_not_count(name: str) -> None:
    at = NOW - dt.timedelta(minutes=5)
    ingest(
        [
            attempt(at),
            attempt(at, adapter=engine(version=2).split(".")[1].removeprefix("a_")),
            attempt(at, adapter="support-bot-two"),
            attempt(at, tenant="globex"),
            attempt(at, adapter=""),
        ]
    )
    found = metrics_by_adapter(
        tenant="acme", adapters=["support-bot", "support-bot-two", "idle"], span=RANGES[name], now=NOW
    )
    assert {adapter: metrics.requests for adapter, metrics in found.items()} == {
        "support-bot": 2,
        "support-bot-two": 1,
        "idle": 0,
    }
    one = adapter_metrics(tenant="acme", adapter="support-bot", span=RANGES[name], now=NOW)
    assert one.total.requests == 2


def test_an_event_that_comes_twice_counts_once_and_sums_agree_with_events() -> None:
    at = NOW - dt.timedelta(hours=1)
    events = [attempt(at, ttft_ms=float(number + 1)) for number in range(9)]
    assert ingest(events) == 9
    assert ingest([*events, attempt(at, itl_ms=None)]) == 1
    assert sum(AdapterHour.objects.values_list("requests", flat=True)) == 10
    times = LatencyHour.objects.values_list("metric", "requests")
    assert sum(count for metric, count in times if metric == "ttft") == 10
    assert sum(count for metric, count in times if metric == "itl") == 9
    assert adapter_sums_differ(day=at.date()) == []
    AdapterHour.objects.update(requests=11)
    assert len(adapter_sums_differ(day=at.date())) == 2


def test_latencies_wait_for_the_task_which_adds_each_once() -> None:
    events = [
        attempt(NOW - dt.timedelta(hours=number % 3), ttft_ms=ttft_ms)
        for number, ttft_ms in enumerate([1.0, 50.0, None] * 5)
    ]
    for batch in (events[:9], events[6:]):
        usage_ingest(entries=entries(batch))
    if connection.vendor == "postgresql":
        assert not LatencyHour.objects.exists()
        assert add_latencies() == 6
        assert not PendingLatencies.objects.exists()
    assert add_latencies() == 0
    held = Counter[tuple[str, int]]()
    for metric, bucket, requests in LatencyHour.objects.values_list("metric", "bucket", "requests"):
        held[metric, bucket] += requests
    assert held == {("ttft", bucket_of(1.0)): 5, ("ttft", bucket_of(50.0)): 5, ("itl", bucket_of(20.0)): 15}


def test_old_days_are_added_up_without_a_change_of_what_is_shown() -> None:
    events = spread(*drawn(300), NOW - dt.timedelta(days=25), dt.timedelta(hours=2))
    ingest(events)
    shown = {
        name: adapter_metrics(tenant="acme", adapter="support-bot", span=RANGES[name], now=NOW)
        for name in RANGES
    }
    before = LatencyHour.objects.count()
    latency_hours_compact(today=NOW.date())
    # A late event of an old day is added up the next night.
    late = attempt(NOW - dt.timedelta(days=20), ttft_ms=None)
    ingest([late])
    latency_hours_compact(today=NOW.date())
    if connection.vendor == "postgresql":
        assert LatencyHour.objects.count() < before
        old = NOW.date() - dt.timedelta(days=HOURLY_DAYS)
        assert not LatencyHour.objects.filter(day__lt=old, hour__gt=0).exists()
    assert sum(LatencyHour.objects.values_list("requests", flat=True)) == 601
    for name in ("hour", "day", "week"):
        now = adapter_metrics(tenant="acme", adapter="support-bot", span=RANGES[name], now=NOW)
        assert now == shown[name]
    month = adapter_metrics(tenant="acme", adapter="support-bot", span=RANGES["month"], now=NOW)
    assert month.total.ttft == shown["month"].total.ttft
    assert month.total.itl - shown["month"].total.itl == Counter({bucket_of(20.0): 1})


def test_a_page_takes_two_queries_of_hourly_sums_and_three_of_events() -> None:
    ingest(spread(*drawn(60), NOW - dt.timedelta(minutes=40), dt.timedelta(seconds=20)))
    for name, most in (("day", 2), ("month", 2), ("hour", 3)):
        with CaptureQueriesContext(connection) as queries:
            adapter_metrics(tenant="acme", adapter="support-bot", span=RANGES[name], now=NOW)
        assert len(queries) == most, name


def test_sums_are_dropped_after_two_months() -> None:
    today = NOW.date()
    for ago in (KEEP_DAYS, KEEP_DAYS + 1):
        ingest([attempt(NOW - dt.timedelta(days=ago))])
    assert adapter_hours_drop_old(today=today) == 3
    assert list(AdapterHour.objects.values_list("day", flat=True)) == [today - dt.timedelta(days=KEEP_DAYS)]


@pytest.mark.parametrize(
    ("name", "adapter"),
    [(engine("bot"), "bot"), ("", ""), ("not-an-engine-name", ""), ("t_a.a_b-c.v1.0123456789ab", "b-c")],
)
def test_an_adapter_s_name_is_read_from_its_engine_name(name: str, adapter: str) -> None:
    assert adapter_of(name) == adapter


def test_an_unknown_range_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="hour, day, week, month"):
        range_named("year")

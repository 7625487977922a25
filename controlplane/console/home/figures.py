"""The home page's figures: a range's sums, and small bar charts by day or hour."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import Final

from django.utils.translation import gettext as _

from controlplane.billing.currency import money
from controlplane.billing.price_list import PriceList
from controlplane.billing.usage_report import UsageReport, UsageRow, usage_report
from controlplane.console.bars import HEIGHT, Bar, bars_drawn
from controlplane.console.templatetags.console import milliseconds
from controlplane.metering.requests import newest_ttft_ms, ttft_ms_of
from controlplane.tenants.models import Tenant

SAMPLE: Final = 1000
"""Newest attempts sampled for the time to first token."""
SPAN_SAMPLE: Final = 500
"""Attempts sampled for each day or hour of the chart."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a range of UTC days.

    Attributes:
        ttft_p50, ttft_p95: milliseconds; None without requests, like `errors_percent`.
        ttft: two bars for each bucket with timed requests, the 95th percentile behind the median.
    """

    total: UsageRow
    errors: int
    ttft_p50: float | None
    ttft_p95: float | None
    sampled: int
    spend: list[Bar]
    tokens: list[Bar]
    failed: list[Bar]
    ttft: list[Bar]
    nano: int

    @property
    def unpriced(self) -> int:
        return sum(bar.unpriced for bar in self.spend)

    @property
    def errors_percent(self) -> float | None:
        return self.errors * 100 / self.total.requests if self.total.requests else None


def home_figures(
    *, tenant: Tenant, start: dt.date, end: dt.date, prices: PriceList
) -> tuple[Figures, UsageReport]:
    """Return sums of the range by day, or of one day by hour; times are of its newest requests."""
    bucket = "hour" if start == end else "day"
    report = usage_report(tenant=tenant, start=start, end=end, group_by=(bucket, "status"), prices=prices)
    times = _hours(start) if bucket == "hour" else _days(start, end)
    span = dt.timedelta(hours=1) if bucket == "hour" else dt.timedelta(days=1)
    rows: dict[str, list[UsageRow]] = {time: [] for time in times}
    for row in report.rows:
        rows.get(row.group[bucket], []).append(row)
    ttft = newest_ttft_ms(tenant=tenant.pk, start=start, end=end, most=SAMPLE)
    figures = Figures(
        report.total,
        sum(row.requests for row in report.rows if row.group["status"] == "error"),
        _quantile(ttft, 0.5),
        _quantile(ttft, 0.95),
        len(ttft),
        _spend(rows, report.currency),
        _bars(
            times,
            [sum(row.prompt_tokens + row.completion_tokens for row in found) for found in rows.values()],
        ),
        _bars(
            times,
            [sum(row.requests for row in found if row.group["status"] == "error") for found in rows.values()],
        ),
        _ttft_bars(
            times, ttft_ms_of(tenant=tenant.pk, spans=_spans(start, span, len(times)), most=SPAN_SAMPLE)
        ),
        report.priced_nano,
    )
    return figures, report


def _days(start: dt.date, end: dt.date) -> list[str]:
    return [(start + dt.timedelta(days=ago)).isoformat() for ago in range((end - start).days + 1)]


def _hours(day: dt.date) -> list[str]:
    return [f"{day.isoformat()}T{hour:02}:00Z" for hour in range(24)]


def _spans(start: dt.date, span: dt.timedelta, count: int) -> list[tuple[dt.datetime, dt.datetime]]:
    first = dt.datetime.combine(start, dt.time(), dt.UTC)
    return [(first + at * span, first + (at + 1) * span) for at in range(count)]


def _quantile(values: list[float], part: float) -> float | None:
    """Return the nearest-rank quantile of sorted values."""
    return values[min(len(values) - 1, int(len(values) * part))] if values else None


def _spend(rows: dict[str, list[UsageRow]], currency: str) -> list[Bar]:
    """Return the bars of spend; a bar with unpriced usage has full height, and its title says so."""
    known = [sum(row.nano or 0 for row in found) for found in rows.values()]
    titles = [f"{time}: {money(nano, currency)}" for time, nano in zip(rows, known, strict=True)]
    bars = bars_drawn([float(nano) for nano in known], titles, most=max(known, default=0))
    for at, found in enumerate(rows.values()):
        if any(row.unpriced for row in found):
            title = _("%(bar)s plus unpriced usage") % {"bar": titles[at]}
            bars[at] = replace(bars[at], y=0.0, height=float(HEIGHT), title=title, unpriced=True)
    return bars


def _bars(times: list[str], values: list[float]) -> list[Bar]:
    titles = [f"{time}: {value:,.0f}" for time, value in zip(times, values, strict=True)]
    return bars_drawn(values, titles, most=max(values, default=0))


def _ttft_bars(times: list[str], samples: list[list[float]]) -> list[Bar]:
    """Return the 95th percentiles first, so that medians are drawn over them."""
    titles, slow, middle = [], [], []
    for time, sample in zip(times, samples, strict=True):
        p50, p95 = _quantile(sample, 0.5), _quantile(sample, 0.95)
        text = _("%(time)s: p50 %(p50)s, p95 %(p95)s, newest %(n)s requests")
        parts = {"time": time, "p50": milliseconds(p50), "p95": milliseconds(p95), "n": f"{len(sample):,}"}
        titles.append(text % parts)
        slow.append(p95 or 0.0)
        middle.append(p50 or 0.0)
    most = max(slow, default=0)
    bars = bars_drawn(slow, titles, most=most, look="bar-0") + bars_drawn(
        middle, titles, most=most, look="bar-1"
    )
    return [bar for bar in bars if bar.height]

"""Figures of the operator's overview: spend, requests, tokens and errors of all tenants over a range."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from typing import Final

from controlplane.billing.currency import money
from controlplane.billing.selectors import booked_by_day
from controlplane.console.bars import Bar, bars_drawn
from controlplane.metering.selectors import usage_by_day

TENANTS: Final = 5
"""Tenants with the highest spend that the page lists."""


@dataclass(frozen=True, slots=True)
class OverviewFigures:
    """Sums of a range of UTC days over all tenants, and a bar for each day.

    Attributes:
        nano: nano-units of booked usage, some minutes behind `requests`.
        tenants: the tenants with the highest spend, each with nano-units and percent of the highest.
    """

    nano: int
    requests: int
    tokens: int
    failed: int
    spend_bars: list[Bar]
    request_bars: list[Bar]
    token_bars: list[Bar]
    failed_bars: list[Bar]
    tenants: list[tuple[str, int, int]]

    @property
    def failed_percent(self) -> float | None:
        return self.failed * 100 / self.requests if self.requests else None


def overview_figures(*, start: dt.date, end: dt.date, currency: str) -> OverviewFigures:
    """Return the figures of a range of UTC days. Two queries."""
    days = [start + dt.timedelta(days=ago) for ago in range((end - start).days + 1)]
    by_day: Counter[dt.date] = Counter()
    by_tenant: Counter[str] = Counter()
    for day, tenant, nano in booked_by_day(start=start, end=end):
        by_day[day] += nano
        by_tenant[tenant] += nano
    spend, used = [by_day[day] for day in days], usage_by_day(start=start, end=end)
    requests, tokens, failed = (
        [used[day][name] if day in used else 0 for day in days] for name in ("asked", "tokens", "failed")
    )
    return OverviewFigures(
        sum(spend),
        sum(requests),
        sum(tokens),
        sum(failed),
        _bars(days, spend, [money(nano, currency) for nano in spend]),
        _bars(days, requests, [f"{value:,}" for value in requests]),
        _bars(days, tokens, [f"{value:,}" for value in tokens]),
        _bars(days, failed, [f"{value:,}" for value in failed]),
        _highest(by_tenant),
    )


def _bars(days: list[dt.date], values: list[int], texts: list[str]) -> list[Bar]:
    titles = [f"{day.isoformat()}: {text}" for day, text in zip(days, texts, strict=True)]
    return bars_drawn([float(value) for value in values], titles, most=max(values, default=0))


def _highest(spend: Counter[str]) -> list[tuple[str, int, int]]:
    found = spend.most_common(TENANTS)
    highest = max(1, *(nano for _tenant, nano in found), 0)
    return [(tenant, nano, max(0, nano) * 100 // highest) for tenant, nano in found]

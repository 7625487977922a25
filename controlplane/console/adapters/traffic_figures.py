"""An adapter's traffic as its page shows it: bars by day and version, shares of versions and aliases."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from contracts.adapters.reference import EngineName
from contracts.errors import ContractError
from controlplane.adapters.models import Adapter
from controlplane.console import chart_axes
from controlplane.metering.adapter_use import DayUse, Times, adapter_use, first_token_times

SPANS: Final = (7, 30, 90)
"""Selectable ranges in days."""
MEASURES: Final = ("requests", "tokens", "errors")
_HUES: Final = 3
"""Number of versions with their own colour, those with the most requests; the others share one."""
_REST: Final = 0
_FILLED: Final = 0.68


@dataclass(frozen=True, slots=True)
class Bar:
    """One version's part of one day, in the chart's units. `hue` 0 is that of the other versions."""

    x: float
    y: float
    width: float
    height: float
    hue: int
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """Sums of a version or alias. `share` is its percent of all requests."""

    name: str
    hue: int
    requests: int
    share: float
    errors: int
    error_share: float
    tokens: int
    times: Times | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of the last `days`; without requests it has no bars."""

    days: int
    measure: str
    bars: tuple[Bar, ...]
    x_labels: tuple[tuple[float, str], ...]
    y_labels: tuple[tuple[float, int], ...]
    versions: tuple[Line, ...]
    aliases: tuple[Line, ...]
    total: Line


def adapter_traffic(*, adapter: Adapter, days: int, measure: str, today: dt.date) -> Traffic:
    """Return the traffic of the last `days`, one of SPANS; `measure` (of MEASURES) is the bars' height."""
    start = today - dt.timedelta(days=days - 1)
    prefix = f"t_{adapter.tenant_id}.a_{adapter.name}.v"
    uses = adapter_use(tenant=adapter.tenant_id, prefix=prefix, start=start, end=today)
    names = {use.adapter for use in uses}
    times = first_token_times(tenant=adapter.tenant_id, adapters=names, today=today) if names else {}
    ranked = [name for name, _ in Counter({name: _requests(uses, name) for name in names}).most_common()]
    hues = {name: at + 1 if at < _HUES else _REST for at, name in enumerate(ranked)}
    total = _line("", _REST, uses, uses)
    versions = [
        _line(_version(name), hues[name], [use for use in uses if use.adapter == name], uses, times.get(name))
        for name in ranked
    ]
    called = Counter[str]()
    for use in uses:
        called[use.alias] += use.requests
    aliases = [
        _line(
            f"{adapter.name}@{alias}" if alias else adapter.name,
            _REST,
            [use for use in uses if use.alias == alias],
            uses,
        )
        for alias, _ in called.most_common()
    ]
    bars, top = _bars(uses, hues, measure, start, days)
    return Traffic(
        days=days,
        measure=measure,
        bars=tuple(bars),
        x_labels=chart_axes.x_labels([f"{start + dt.timedelta(days=at):%d %b}" for at in range(days)]),
        y_labels=chart_axes.y_labels(top),
        versions=tuple(versions),
        aliases=tuple(aliases),
        total=total,
    )


def _requests(uses: Sequence[DayUse], name: str) -> int:
    return sum(use.requests for use in uses if use.adapter == name)


def _line(
    name: str, hue: int, own: Sequence[DayUse], everything: Sequence[DayUse], times: Times | None = None
) -> Line:
    requests, errors = sum(use.requests for use in own), sum(use.errors for use in own)
    whole = sum(use.requests for use in everything)
    share = 100 * requests / whole if whole else 0.0
    error_share = 100 * errors / requests if requests else 0.0
    return Line(name, hue, requests, share, errors, error_share, sum(use.tokens for use in own), times)


def _version(engine_name: str) -> str:
    try:
        return f"v{EngineName.parse(engine_name).version}"
    except ContractError:
        return engine_name


def _bars(
    uses: Sequence[DayUse], hues: dict[str, int], measure: str, start: dt.date, days: int
) -> tuple[list[Bar], int]:
    """Return the bars, and the amount at the chart's top."""
    sums: dict[dt.date, Counter[str]] = defaultdict(Counter)
    for use in uses:
        sums[use.day][use.adapter] += getattr(use, measure)
    top = chart_axes.round_up(max((day.total() for day in sums.values()), default=0))
    step = chart_axes.step(days)
    bars = []
    for day, amounts in sums.items():
        at = float(chart_axes.HEIGHT - chart_axes.BOTTOM)
        x = chart_axes.LEFT + ((day - start).days + (1 - _FILLED) / 2) * step
        # The busiest version is at the bottom, in the order of the legend.
        for name in hues:
            height = chart_axes.height(amounts[name], top)
            if height:
                at -= height
                title = f"{day:%Y-%m-%d}, {_version(name)}: {amounts[name]:,}"
                bars.append(
                    Bar(
                        round(x, 1),
                        round(at, 1),
                        round(_FILLED * step, 1),
                        round(height, 1),
                        hues[name],
                        title,
                    )
                )
    return bars, top

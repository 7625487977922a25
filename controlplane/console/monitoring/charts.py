"""Charts of an adapter's metrics over time, drawn by the server: stacked bars, and lines of percentiles."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _

from controlplane.console import chart_axes
from controlplane.metering.adapter_metrics import PERCENTILES, AdapterMetrics, Metrics

Hue = int | str
_FILLED: Final = 0.72
_FAILED: Final = "danger"
"""Hue of failures."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in the chart's units."""

    x: float
    y: float
    width: float
    height: float
    hue: Hue


@dataclass(frozen=True, slots=True)
class Line:
    """A line in the chart's units: the `points` of an SVG polyline, or a dot where it has only one."""

    hue: Hue
    points: str = ""
    dot: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot's area, with the text that shows while the pointer is on it."""

    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its legend of (hue, text). Without values it has neither bars nor lines."""

    key: str
    title: str
    legend: tuple[tuple[Hue, str], ...]
    x_labels: tuple[tuple[float, str], ...]
    y_labels: tuple[tuple[float, int], ...]
    slots: tuple[Slot, ...]
    bars: tuple[Bar, ...] = ()
    lines: tuple[Line, ...] = ()


def charts_of(found: AdapterMetrics) -> list[Chart]:
    """Return the charts of requests, tokens, and both latencies."""
    requests: list[tuple[Hue, str, Callable[[Metrics], int]]] = [
        (1, _("Not failed"), lambda metrics: metrics.requests - metrics.failed),
        (_FAILED, _("Failed"), lambda metrics: metrics.failed),
    ]
    tokens: list[tuple[Hue, str, Callable[[Metrics], int]]] = [
        (1, _("Input"), lambda metrics: metrics.prompt_tokens),
        (2, _("Output"), lambda metrics: metrics.completion_tokens),
    ]
    return [
        _bars("requests", _("Requests"), found, requests),
        _bars("tokens", _("Tokens"), found, tokens),
        _lines("ttft", _("Time to first token (ms)"), found),
        _lines("itl", _("Inter-token latency (ms)"), found),
    ]


def _bars(
    key: str, title: str, found: AdapterMetrics, parts: list[tuple[Hue, str, Callable[[Metrics], int]]]
) -> Chart:
    amounts = [[part(metrics) for _hue, _name, part in parts] for _at, metrics in found.over_time]
    top = chart_axes.round_up(max(map(sum, amounts), default=0))
    width = chart_axes.step(len(amounts))
    bars = []
    for number, column in enumerate(amounts):
        y = float(chart_axes.HEIGHT - chart_axes.BOTTOM)
        x = chart_axes.LEFT + (number + (1 - _FILLED) / 2) * width
        for (hue, _name, _part), amount in zip(parts, column, strict=True):
            if amount:
                height = chart_axes.height(amount, top)
                y -= height
                bars.append(Bar(round(x, 1), round(y, 1), round(_FILLED * width, 1), round(height, 1), hue))
    titles = [
        ", ".join(f"{name} {amount:,}" for (_hue, name, _part), amount in zip(parts, column, strict=True))
        for column in amounts
    ]
    legend = tuple((hue, name) for hue, name, _part in parts)
    return _chart(key, title, found, legend, top, titles, bars=bars)


def _lines(key: str, title: str, found: AdapterMetrics) -> Chart:
    values = [
        [metrics.percentile_ms(key, percent) for percent in PERCENTILES] for _at, metrics in found.over_time
    ]
    known = [value for column in values for value in column if value is not None]
    top = chart_axes.round_up(math.ceil(max(known, default=0)))
    lines = [
        line
        for index in range(len(PERCENTILES))
        for line in _polylines(index + 1, [column[index] for column in values], top)
    ]
    titles = [
        ", ".join(
            f"p{percent} {value:,.0f} ms"
            for percent, value in zip(PERCENTILES, column, strict=True)
            if value is not None
        )
        for column in values
    ]
    legend = tuple((index + 1, f"p{percent}") for index, percent in enumerate(PERCENTILES))
    return _chart(key, title, found, legend, top, titles, lines=lines)


def _polylines(hue: Hue, values: Sequence[float | None], top: int) -> list[Line]:
    """Return a line for each run of slots with values."""
    width, runs = chart_axes.step(len(values)), list[list[tuple[float, float]]]()
    is_open = False
    for number, value in enumerate(values):
        if value is None:
            is_open = False
            continue
        if not is_open:
            runs.append([])
            is_open = True
        x = chart_axes.LEFT + (number + 0.5) * width
        y = chart_axes.HEIGHT - chart_axes.BOTTOM - chart_axes.height(value, top)
        runs[-1].append((round(x, 1), round(y, 1)))
    return [
        Line(hue, dot=run[0]) if len(run) == 1 else Line(hue, " ".join(f"{x},{y}" for x, y in run))
        for run in runs
    ]


def _chart(
    key: str,
    title: str,
    found: AdapterMetrics,
    legend: tuple[tuple[Hue, str], ...],
    top: int,
    titles: Sequence[str],
    *,
    bars: Sequence[Bar] = (),
    lines: Sequence[Line] = (),
) -> Chart:
    width, times = chart_axes.step(len(titles)), [at for at, _metrics in found.over_time]
    slots = [
        Slot(round(chart_axes.LEFT + number * width, 1), round(width, 1), f"{at:%d %b %H:%M}: {text}")
        for number, (at, text) in enumerate(zip(times, titles, strict=True))
        if text
    ]
    labels = chart_axes.x_labels([f"{at:{_format(found.span.slot)}}" for at in times])
    return Chart(
        key, title, legend, labels, chart_axes.y_labels(top), tuple(slots), tuple(bars), tuple(lines)
    )


def _format(slot: dt.timedelta) -> str:
    return "%H:%M" if slot <= dt.timedelta(hours=1) else "%d %b"

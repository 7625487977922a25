"""The usage explorer's query, which the page's URL states completely."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from typing import Any

from django.http import HttpRequest

from controlplane.billing.renderers import cell
from controlplane.billing.usage_explorer import EXPLORED, Explored, Line, Question
from controlplane.console.day_range import range_asked

_FIRST_SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "price")
_ADDED_SUMS = ("reasoning_tokens", "images")
"""Columns that come last in the export, for readers that go by position."""
SUMS = (*_FIRST_SUMS, *_ADDED_SUMS)


def question_of(request: HttpRequest) -> Question:
    """Parse the request: names of `EXPLORED` filter, and `none=adapter` selects usage without an adapter.

    Raises InvalidInputError for invalid days, groups and other values.
    """
    start, end = range_asked(request)
    asked = Question(
        start,
        end,
        request.GET.get("group") or "adapter",
        request.GET.get("bucket") or "day",
        request.GET.get("measure") or "tokens",
        {
            name: request.GET[name].strip()[:200]
            for name in EXPLORED
            if name in request.GET and _asks(request, name)
        },
    )
    asked.check()
    return asked


def _asks(request: HttpRequest, name: str) -> bool:
    """Return True if a filter is set: an empty field of the form is none, unless `none` names it."""
    return bool(request.GET[name].strip()) or name in request.GET.getlist("none")


def all_lines(found: Explored) -> Iterator[Line]:
    """Yield the shown lines, then the sum of the others."""
    yield from found.lines
    if found.others is not None:
        yield found.others


def exported_rows(found: Explored, asked: Question, names: dict[str, str]) -> Iterator[list[Any]]:
    """Yield the table as rows: its head, its lines, and the total."""
    before = [f"before_{name}" for name in _FIRST_SUMS]
    added = [f"{prefix}{name}" for prefix in ("", "before_") for name in _ADDED_SUMS]
    yield [asked.group, "name", *_FIRST_SUMS, "currency", *before, *added]
    for line in all_lines(found):
        is_others = line is found.others
        value = f"{found.count} others" if is_others else line.value
        yield [cell(value), cell(names.get(line.value, "") if not is_others else ""), *_cells(found, line)]
    total = Line("", found.total, found.before, ())
    yield ["total", "", *_cells(found, total)]


def _cells(found: Explored, line: Line) -> list[Any]:
    now, before, *added = (
        [_cell(getattr(row, name)) for name in names]
        for names in (_FIRST_SUMS, _ADDED_SUMS)
        for row in (line.row, line.before)
    )
    return [*now, found.currency, *before, *itertools.chain(*added)]


def _cell(value: int | str | None) -> int | str:
    return "unpriced" if value is None else value


def exported_json(found: Explored, asked: Question, names: dict[str, str]) -> dict[str, Any]:
    """Return the table with the query, and each line over time."""
    return {
        "start": asked.start.isoformat(),
        "end": asked.end.isoformat(),
        "before_start": found.before_start.isoformat(),
        "before_end": (asked.start - dt.timedelta(days=1)).isoformat(),
        "group": asked.group,
        "bucket": asked.bucket,
        "only": dict(asked.only),
        "currency": found.currency,
        "times": list(found.times),
        "rows": [
            {
                "value": None if line is found.others else line.value,
                "name": None if line is found.others else names.get(line.value),
                "others": found.count if line is found.others else 0,
                **_line_sums(line),
                "series": [_sums(row) for row in line.series],
            }
            for line in all_lines(found)
        ],
        "total": {**_sums(found.total), "before": _sums(found.before)},
    }


def _line_sums(line: Line) -> dict[str, Any]:
    return {**_sums(line.row), "before": _sums(line.before)}


def _sums(row: Any) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in SUMS}, "unpriced": row.unpriced}

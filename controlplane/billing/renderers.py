"""Usage reports as JSON and CSV, written row by row from the report's columns.

A month by day, adapter and key has 18,000 rows; one object per row took longer than the queries.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import orjson
from rest_framework.renderers import BaseRenderer, JSONRenderer

from controlplane.billing.usage_report import UsageReport, money_text

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_SUMS: Final = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
_ADDED: Final = ("reasoning_tokens", "images")
"""Columns that come last, for readers that go by position."""


class UsageJsonRenderer(JSONRenderer):
    """Render a report in the shape of `UsageReportSerializer`, or the data of an error."""

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        if isinstance(data, UsageReport):
            return _json(data)
        # Error texts may be lazy translations, hence `default=str`.
        return b"" if data is None else orjson.dumps(data, default=str)


def _json(report: UsageReport) -> bytes:
    total = report.total
    head = {
        "start": report.start,
        "end": report.end,
        "group_by": report.group_by,
        "currency": report.currency,
        "total": total._asdict() | {"unpriced": total.unpriced},
    }
    priced = (
        'null,"unpriced":true' if unpriced else f'"{money_text(nano)}","unpriced":false'
        for nano, unpriced in zip(report.nano, report.unpriced, strict=True)
    )
    rows = ",".join(
        f'{group}"requests":{requests},"prompt_tokens":{prompt},"cached_tokens":{cached}'
        f',"completion_tokens":{completion},"reasoning_tokens":{reasoning},"images":{images}'
        f',"price":{price}}}'
        for group, requests, prompt, cached, completion, reasoning, images, price in zip(
            _groups(report),
            report.requests,
            report.prompt_tokens,
            report.cached_tokens,
            report.completion_tokens,
            report.reasoning_tokens,
            report.images,
            priced,
            strict=True,
        )
    )
    return orjson.dumps(head)[:-1] + b',"rows":[' + rows.encode() + b"]}"


def _groups(report: UsageReport) -> Iterator[str]:
    """Yield the beginning of each row's JSON, with its group.

    Each distinct value is encoded once. Names are those of `GROUPS`, which need no escaping.
    """
    if not report.groups:
        return repeat('{"group":{},', len(report.requests))
    cells = []
    for index, (name, column) in enumerate(zip(report.group_by, report.groups, strict=True)):
        before = "," if index else '{"group":{'
        after = "}," if index == len(report.groups) - 1 else ""
        texts = {value: f'{before}"{name}":{_text(value)}{after}' for value in set(column)}
        cells.append(map(texts.__getitem__, column))
    return map("".join, zip(*cells, strict=True))


def _text(value: str) -> str:
    return orjson.dumps(value).decode()


class UsageCsvRenderer(BaseRenderer):
    """Render one line per row under a header line; errors as lines under `code,detail,attr`."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text)
        if isinstance(data, UsageReport):
            writer.writerow([*data.group_by, *_SUMS, "price", "currency", "unpriced", *_ADDED])
            writer.writerows(_lines(data))
        else:
            writer.writerow(["code", "detail", "attr"])
            for error in data["errors"]:
                writer.writerow([error["code"], cell(error["detail"]), error["attr"]])
        return text.getvalue().encode()


def _lines(report: UsageReport) -> Iterator[tuple[Any, ...]]:
    groups = [map(cell, column) for column in report.groups]
    marks = zip(report.nano, report.unpriced, strict=True)
    prices = ["" if unpriced else money_text(nano) for nano, unpriced in marks]
    flags = ["true" if unpriced else "false" for unpriced in report.unpriced]
    sums, added = ([getattr(report, name) for name in names] for names in (_SUMS, _ADDED))
    currencies = repeat(report.currency, len(prices))
    return zip(*groups, *sums, prices, currencies, flags, *added, strict=True)


def cell(text: str) -> str:
    """Escape text that a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text

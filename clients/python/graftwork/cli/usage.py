"""`graftwork usage`."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from graftwork.cli.output import Json, note, show, show_rows, speaks_json
from graftwork.cli.session import client
from graftwork.errors import ConfigurationError


def usage(
    start: Annotated[
        str | None, typer.Option(help="First UTC day of the report; 30 days ago by default.")
    ] = None,
    end: Annotated[
        str | None, typer.Option(help="Last UTC day of the report, included; today by default.")
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            help="Groups, separated by commas: day, adapter, version, alias, key, base, operation, status."
        ),
    ] = "adapter",
    json: Json = False,
) -> None:
    """Show token usage and its price."""
    today = dt.datetime.now(dt.UTC).date()
    first, last = _day(start, today - dt.timedelta(days=30)), _day(end, today)
    groups = [name.strip() for name in by.split(",") if name.strip()]
    with client() as found:
        report = found.usage(first, last, group_by=groups)
    if speaks_json():
        show(report)
        return
    heads = (
        *report.group_by,
        "requests",
        "prompt",
        "cached",
        "completion",
        "reasoning",
        "images",
        f"price ({report.currency})",
    )
    rows = [*report.rows, report.total] if report.rows else []
    cells = (
        (
            *(row.group.get(name, "total" if name == report.group_by[0] else "") for name in report.group_by),
            row.requests,
            row.prompt_tokens,
            row.cached_tokens,
            row.completion_tokens,
            row.reasoning_tokens,
            row.images,
            "not priced" if row.price is None else row.price,
        )
        for row in rows
    )
    show_rows(rows, heads, cells, none="no usage")
    note(f"[dim]{report.start} to {report.end}, UTC[/]")


def _day(text: str | None, default: dt.date) -> dt.date:
    try:
        return default if text is None else dt.date.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is not a date: write it as 2026-01-31") from error

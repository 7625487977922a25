"""Output of commands: tables and lines for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from graftwork.cli.exits import advice, status_of
from graftwork.errors import ApiError, GraftworkError
from graftwork.models import to_json

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


class _Mode:
    """The output mode of this process."""

    json = False


def _choose(value: bool) -> bool:
    _Mode.json = _Mode.json or value
    return value


Json = Annotated[
    bool, typer.Option("--json", help="Print output and errors as JSON.", callback=_choose, is_eager=True)
]
"""The `--json` option, which every command takes."""


def speaks_json() -> bool:
    """Returns True if output is JSON."""
    return _Mode.json


def show(value: Any, *lines: str) -> None:
    """Prints `value` as JSON, or `lines` as text."""
    if _Mode.json:
        sys.stdout.write(json.dumps(to_json(value), indent=2) + "\n")
        return
    for line in lines:
        out.print(line)


def show_rows(
    values: Sequence[Any], heads: Sequence[str], rows: Iterable[Sequence[Any]], *, none: str
) -> None:
    """Prints `values` as a JSON list, or `rows` as a table; the text `none` if there are no rows."""
    if _Mode.json:
        show(values)
        return
    table = Table(*heads, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*map(_cell, row))
    out.print(table if values else none)


def _cell(value: Any) -> str:
    """Formats a cell; a time is cut to minutes in UTC (Z), so that rows fit a terminal. JSON has it whole."""
    match value:
        case None:
            return ""
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%MZ}"
        case _:
            return str(value)


def note(text: str) -> None:
    """Prints a progress note on stderr; silent in JSON mode."""
    if not _Mode.json:
        err.print(text)


def fail(error: GraftworkError) -> int:
    """Prints `error` with a hint, and returns the exit status."""
    status, hint = status_of(error), advice(error)
    if _Mode.json:
        body: dict[str, Any] = {"type": type(error).__name__, "detail": str(error), "hint": hint}
        if isinstance(error, ApiError):
            body |= {"status": error.status, "problems": to_json(error.problems)}
        sys.stderr.write(json.dumps({"error": body}) + "\n")
        return status
    err.print(f"[bold red]error:[/] {_plain(str(error))}")
    if hint:
        err.print(f"[dim]try:[/] {_plain(hint)}")
    return status


def _plain(text: str) -> str:
    """Escapes rich's markup in a text."""
    return text.replace("[", r"\[")

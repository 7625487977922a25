"""Exports of the audit log as CSV and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from controlplane.platform.audit.chain import FIELDS
from controlplane.platform.audit.models import AuditRecord

Form = Literal["jsonl", "csv"]
CONTENT_TYPES: Final[dict[Form, str]] = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
_COLUMNS: Final = ("at", *FIELDS, "sha256")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def export_lines(chunks: Iterable[list[AuditRecord]], form: Form) -> Iterator[bytes]:
    """The records as text, a piece for each chunk; CSV begins with the columns' names.

    A line of JSON holds what its record's digest covers, so that an export can be verified by itself.
    """
    if form == "csv":
        yield _csv([_COLUMNS])
    for chunk in chunks:
        if form == "csv":
            yield _csv([[_cell(record, name) for name in _COLUMNS] for record in chunk])
        else:
            yield "".join(record_line(record) for record in chunk).encode()


def record_line(record: AuditRecord) -> str:
    """Return a record as a line of JSON."""
    values = {name: getattr(record, name) for name in _COLUMNS} | {"at": record.at.isoformat()}
    return json.dumps(values) + "\n"


def _csv(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(record: AuditRecord, name: str) -> str:
    """Return a value that a spreadsheet does not read as a formula."""
    value = getattr(record, name)
    if name in ("before", "after"):
        return "" if value is None else json.dumps(value)
    text = record.at.isoformat() if name == "at" else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text

"""A trace of one's own, by REST as rows and by page as a file: checked before anything is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.core.files.uploadedfile import UploadedFile

from contracts.recipes.progress import JobError
from contracts.recipes.trace_rows import ARRIVAL, LENGTHS, TracedRequest, read_rows, traced_request
from controlplane.errors import InvalidInputError

MOST_ROWS: Final = 10_000
_MOST_BYTES: Final = 4 << 20


def rows_checked(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Rows of [tokens of the prompt, tokens of the answer] or with seconds since the trace began behind them.

    Raises:
        InvalidInputError: naming the row, from 1.
    """
    found = list[TracedRequest]()
    for number, row in enumerate(rows, start=1):
        try:
            if len(row) != len(rows[0]):
                raise ValueError(f"has {len(row)} numbers, the first has {len(rows[0])}")
            found.append(traced_request([_cell(value) for value in row], found[-1] if found else None))
        except ValueError as error:
            raise InvalidInputError(f"row {number}: {error}", field="load.lengths") from error
    return [_row(request) for request in found]


def rows_of_file(file: UploadedFile[Any]) -> list[list[float]]:
    """A CSV's. Raises InvalidInputError with the line's number."""
    data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InvalidInputError(f"a trace is at most {_MOST_BYTES >> 20} MiB", field="trace")
    try:
        found = read_rows(data.decode().splitlines(), file.name or "the trace")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the trace is not UTF-8 (byte {error.start})", field="trace") from error
    except JobError as error:
        raise InvalidInputError(str(error), field="trace") from error
    if not 1 <= len(found) <= MOST_ROWS:
        raise InvalidInputError(f"a trace has 1 to {MOST_ROWS} requests, got {len(found)}", field="trace")
    return [_row(request) for request in found]


def trace_csv(rows: Sequence[Sequence[float]]) -> str:
    """The rows as `compare` reads them."""
    columns = (*LENGTHS, ARRIVAL)[: len(rows[0])]
    return "".join(f"{','.join(cells)}\n" for cells in (columns, *(map(_cell, row) for row in rows)))


def _row(request: TracedRequest) -> list[float]:
    lengths: list[float] = [request.prompt, request.answer]
    return lengths if request.arrival is None else [*lengths, request.arrival]


def _cell(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)

"""A trace of a service's requests as CSV: token counts and arrival times. Standard library only."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from contracts.recipes.progress import Code, JobError

LENGTHS: Final = ("context_tokens", "generated_tokens")
ARRIVAL: Final = "arrival_s"
"""Seconds since the trace began; the column is optional unless arrivals are replayed."""
MOST_TOKENS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a trace.

    Attributes:
        prompt, answer: token counts.
        arrival: seconds since the trace began; None if the trace has no arrival times.
    """

    prompt: int
    answer: int
    arrival: float | None = None


def read_rows(lines: Iterable[str], name: str, *, arrivals: bool = False) -> list[TracedRequest]:
    """Read every row of the CSV `lines`; `name` is the file's name in error texts.

    Args:
        arrivals: True if arrival times are required.

    Raises:
        JobError: bad_data, with the line's number.
    """
    rows = csv.DictReader(lines)
    try:
        columns = rows.fieldnames or ()
        needed = (*LENGTHS, ARRIVAL) if arrivals else LENGTHS
        if missing := [column for column in needed if column not in columns]:
            why = ", by which its requests are replayed" if missing[0] == ARRIVAL else ""
            raise JobError(Code.BAD_DATA, f"{name} has no column {missing[0]}{why}")
        taken = (*LENGTHS, ARRIVAL) if ARRIVAL in columns else LENGTHS
        found = list[TracedRequest]()
        for row in rows:
            try:
                cells = [row[column] for column in taken]
                found.append(traced_request(cells, found[-1] if found else None))
            except ValueError as error:
                raise JobError(Code.BAD_DATA, f"{name}, line {rows.line_num}: {error}") from None
    except csv.Error as error:
        raise JobError(Code.BAD_DATA, f"{name}, line {rows.line_num}: {error}") from error
    return found


def traced_request(cells: Sequence[str | None], before: TracedRequest | None) -> TracedRequest:
    """Parse a row's cells: prompt tokens, answer tokens, and an arrival time if there is a third cell.

    Args:
        before: the previous row.

    Raises:
        ValueError: says what is wrong.
    """
    lengths = cells[: len(LENGTHS)]
    try:
        prompt, answer = (int(cell or "") for cell in lengths)
    except ValueError:
        raise ValueError(f"lengths must be whole numbers, got {lengths}") from None
    if not (1 <= prompt <= MOST_TOKENS and 1 <= answer <= MOST_TOKENS):
        raise ValueError(f"lengths must be 1 or more, up to {MOST_TOKENS}, got {lengths}")
    if len(cells) == len(LENGTHS):
        return TracedRequest(prompt, answer)
    last = None if before is None else before.arrival
    return TracedRequest(prompt, answer, _arrival(cells[-1], last or 0.0))


def _arrival(cell: str | None, before: float) -> float:
    try:
        at = float(cell or "")
    except ValueError:
        at = math.nan
    if not before <= at < math.inf:
        raise ValueError(
            f"{ARRIVAL} must be a number of seconds since the trace began, from {before:g} on: rows stand in"
            f" the order in which their requests came; got {cell!r}"
        )
    return at

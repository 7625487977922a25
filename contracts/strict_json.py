"""JSON from users: RFC 8259 as the standard library reads it, without what PostgreSQL and JSON cannot hold.

Python's own parser takes NaN and Infinity, turns 1e999 into infinity, and lets lone surrogates through.
PostgreSQL's jsonb takes none of these, nor NUL. The standard library alone is used, since the GPU report runs
the engine where no other is installed.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

MAX_DEPTH: Final = 100
"""Deepest nesting of values. Python's JSON writer fails at its stack's depth, which differs by caller."""


def loads(data: bytes | str) -> Any:
    """Parse one JSON value.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or holds what `find_fault` names.
    """
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if (fault := find_fault(value)) is not None:
        raise ValueError(f"it {fault}")
    return value


def find_fault(value: object) -> str | None:
    """Return what keeps a parsed value from being JSON that a database stores; None for a good one.

    The text continues a sentence: "holds NaN at a.b.0, which is not a JSON number".
    """
    pending: list[tuple[int, str, object]] = [(0, "", value)]
    while pending:
        depth, path, item = pending.pop()
        if (fault := _fault_of(item, depth)) is not None:
            what, why = fault
            place = f" at {ascii(path[1:201])[1:-1]}" if path else ""
            return f"holds {what}{place}, which {why}"
        if isinstance(item, dict):
            pending += ((depth, path, name) for name in item)
            pending += ((depth + 1, f"{path}.{name}", held) for name, held in item.items())
        elif isinstance(item, list):
            pending += ((depth + 1, f"{path}.{index}", held) for index, held in enumerate(item))
    return None


def _fault_of(item: object, depth: int) -> tuple[str, str] | None:
    if depth > MAX_DEPTH:
        return f"more than {MAX_DEPTH} values within one another", "cannot be stored"
    if isinstance(item, float) and not math.isfinite(item):
        return "NaN" if math.isnan(item) else "an infinite number", "is not a JSON number"
    if isinstance(item, str) and "\0" in item:
        return "a NUL character", "cannot be stored"
    if isinstance(item, str) and not item.isascii() and not _is_unicode(item):
        return "half of a surrogate pair", "is not valid Unicode"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

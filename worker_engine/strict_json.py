"""JSON from users: RFC 8259 as the standard library reads it, without what PostgreSQL and JSON cannot hold.

Python's own parser takes NaN and Infinity, turns 1e999 into infinity, and lets lone surrogates through.
PostgreSQL's jsonb takes none of these, nor NUL. The standard library alone is used, since the GPU report runs
the engine where no other is installed.
"""

from __future__ import annotations

import json
import math
from typing import Any


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

    The text continues a sentence: "holds NaN, which is no JSON number".
    """
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending += item.keys()
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, float):
            if not math.isfinite(item):
                return f"holds {'NaN' if math.isnan(item) else 'an infinite number'}, which is no JSON number"
        elif isinstance(item, str):
            if "\0" in item:
                return "holds a NUL character in a text"
            if not item.isascii() and not _is_unicode(item):
                return "holds half of a surrogate pair in a text, which is no Unicode"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

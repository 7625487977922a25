"""Checks of structured parameters: each returns None, or a text that says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from contracts.openai.kinds import Prompts
from contracts.openai.parameters import MAX_MESSAGES

Check = Callable[[Any], str | None]
"""Checks a value; returns None if it is valid, else what was expected."""

MAX_SCHEMA_BYTES: Final = 64 << 10
MAX_PAIRS: Final = 16
MAX_DEPTH: Final = 200
_ENCODER_DEPTH: Final = 254
"""orjson refuses to encode deeper nesting."""


def messages(value: Any) -> str | None:
    right = isinstance(value, list) and 0 < len(value) <= MAX_MESSAGES
    right = right and all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in value)
    if right and not all(isinstance(part, str) for item in value for part in item.values()):
        right = encodes(value)
    return None if right else f"1 to {MAX_MESSAGES} objects, each with a role"


def prompts(kind: Prompts) -> Check:
    """Check prompts, and refuse an empty text as an empty list: many backends fail on it."""
    return lambda value: kind.expected([] if value == "" else value)


def one_of(*values: str) -> Check:
    return lambda value: None if value in values else " or ".join(values)


def schema(value: Any) -> str | None:
    right = isinstance(value, dict | list | str) and encodes(value, MAX_SCHEMA_BYTES)
    return (
        None if right else f"JSON of at most {MAX_SCHEMA_BYTES} bytes, nested at most {MAX_DEPTH} levels deep"
    )


def encodes(value: Any, most: int = 1 << 30) -> bool:
    """Return True if orjson can encode a value in `most` bytes; it decodes deeper nesting than it encodes.

    Room is left for the levels that a backend request, or a response that repeats the value, adds around it.
    """
    levels = _ENCODER_DEPTH - MAX_DEPTH
    for _ in range(levels):
        value = [value]
    try:
        return len(orjson.dumps(value)) - 2 * levels <= most
    except orjson.JSONEncodeError:
        return False


def metadata(value: Any) -> str | None:
    """Check OpenAI's bounds: 16 pairs, keys of 64 characters, values of 512."""
    right = isinstance(value, dict) and len(value) <= MAX_PAIRS
    right = right and all(
        len(key) <= 64 and type(text) is str and len(text) <= 512 for key, text in value.items()
    )
    return None if right else f"an object of at most {MAX_PAIRS} strings of 512 characters, its keys of 64"

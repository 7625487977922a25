"""Converts rows to the values that the audit log stores: plain JSON without secrets or long values."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from django.db.models import Model

HIDDEN: Final = "(not recorded)"
LONGEST: Final = 2000
"""Longest value in characters of JSON; of a longer one only the digest is stored."""

_SECRET: Final = re.compile(r"secret|password|credential|salt|encrypted|private|(^|_)token(_|$)", re.I)
"""Matches names of secret fields and environment variables, such as HF_TOKEN."""


def snapshot(row: Model) -> dict[str, Any]:
    """Return the row's columns by field name, with secret values replaced by HIDDEN."""
    fields = row._meta.concrete_fields
    return plain({field.name: field.value_from_object(row) for field in fields})


def locked_snapshot(row: Model) -> dict[str, Any]:
    """Return the snapshot of the row's current state, locked for a change in this transaction."""
    return snapshot(type(row)._default_manager.select_for_update().get(pk=row.pk))


def is_secret(name: str) -> bool:
    """Return True if a field of this name is secret, so that it is neither recorded nor exported."""
    return _SECRET.search(name) is not None


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert `values` to JSON types, with secrets and long values replaced."""
    return {name: _short(value) for name, value in _plain(values).items()}


def difference(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return (before, after) without the values that are equal in both."""
    if before is None or after is None:
        return (None if before is None else dict(before)), (None if after is None else dict(after))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return (
        {name: before[name] for name in names if name in before},
        {name: after[name] for name in names if name in after},
    )


def _short(value: Any) -> Any:
    text = json.dumps(value, sort_keys=True)
    if len(text) <= LONGEST:
        return value
    return f"({len(text)} characters of JSON, sha256 {hashlib.sha256(text.encode()).hexdigest()})"


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case float() if 1e-4 <= abs(value) < 1e15 or value == 0:
            return value
        case str():
            # PostgreSQL's jsonb takes neither NUL nor half a surrogate pair.
            return value.replace("\0", "\\0").encode(errors="backslashreplace").decode()
        case Mapping():
            items = {_plain(str(name)): item for name, item in value.items()}
            return {
                name: HIDDEN if item and _SECRET.search(name) else _plain(item)
                for name, item in items.items()
            }
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case dt.datetime() | dt.date():
            return value.isoformat()
        case bytes() | memoryview():
            return HIDDEN
        case _:
            return str(value)

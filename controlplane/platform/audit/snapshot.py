"""Rows as the audit log keeps them: plain values, no secret, nothing long."""

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
"""Characters of one value as JSON; of a longer one the digest alone is kept."""

_SECRET: Final = re.compile(r"secret|password|credential|salt|encrypted|private|(^|_)token(_|$)", re.I)
"""Of a field, and of an environment variable: HF_TOKEN."""


def snapshot(row: Model) -> dict[str, Any]:
    """The row's columns by field name. What a field's name calls secret is not among the values."""
    fields = row._meta.concrete_fields
    return plain({field.name: field.value_from_object(row) for field in fields})


def locked_snapshot(row: Model) -> dict[str, Any]:
    """The same, as the database has it now, locked: what this transaction is about to change."""
    return snapshot(type(row)._default_manager.select_for_update().get(pk=row.pk))


def is_secret(name: str) -> bool:
    """Whether a field of this name holds what is neither recorded nor exported."""
    return _SECRET.search(name) is not None


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as JSON has them, secrets and long ones replaced."""
    return {name: _short(value) for name, value in _plain(values).items()}


def difference(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Both sides, without what is alike on both."""
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

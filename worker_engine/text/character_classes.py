r"""Replaces `\d`, `\w` and `\s` in clients' regular expressions by their ASCII classes.

The grammar library uses Rust's syntax, where they mean Unicode: `\d{4}` would let a model write digits of
other scripts, and small models do.
"""

from __future__ import annotations

import re
from typing import Any, Final

_CLASSES: Final = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[ \t\n\r\f\v]",
    "S": r"[^ \t\n\r\f\v]",
}
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords of a JSON schema that hold values, where `pattern` is an ordinary name."""
_NAMES: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
"""Keywords that map names to schemas; `pattern` may be one of the names."""


def with_ascii_classes(pattern: str) -> str:
    """Return `pattern` with the classes spelled out, also within brackets, where Rust's syntax nests them."""
    return _ESCAPE.sub(lambda found: _CLASSES.get(found[1], found[0]), pattern)


def schema_with_ascii_classes(schema: Any) -> Any:
    """Return a copy of a JSON schema with the classes in `pattern` and `patternProperties` spelled out."""
    if isinstance(schema, list):
        return [schema_with_ascii_classes(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _VALUES:
            changed[key] = value
        elif key == "pattern" and isinstance(value, str):
            changed[key] = with_ascii_classes(value)
        elif key in _NAMES and isinstance(value, dict):
            changed[key] = {name: schema_with_ascii_classes(inner) for name, inner in value.items()}
        elif key == "patternProperties" and isinstance(value, dict):
            changed[key] = {
                with_ascii_classes(name): schema_with_ascii_classes(inner) for name, inner in value.items()
            }
        else:
            changed[key] = schema_with_ascii_classes(value)
    return changed

r"""What `\d`, `\w` and `\s` mean in a client's regular expression: ASCII.

The grammar library's syntax is Rust's, where they mean Unicode: `\d{4}` would let a model write digits of
other scripts, and small ones do.
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
"""Keywords of a JSON schema that hold values, in which `pattern` is a name like others."""
_NAMES: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
"""Keywords that hold schemas by names, of which `pattern` may be one."""


def with_ascii_classes(pattern: str) -> str:
    """`pattern` with the classes spelled out; within brackets too, where Rust's syntax nests them."""
    return _ESCAPE.sub(lambda found: _CLASSES.get(found[1], found[0]), pattern)


def schema_with_ascii_classes(schema: Any) -> Any:
    """A copy of a JSON schema whose `pattern`s and `patternProperties` have the classes spelled out."""
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

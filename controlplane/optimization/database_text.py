"""What a subprocess says, as a database takes it: PostgreSQL has neither NUL nor half characters nor NaN."""

from __future__ import annotations

import math
from typing import Any


def storable(value: Any) -> Any:
    """A text, or a JSON value, in which what cannot be kept is replaced: a model's answer may be anything."""
    match value:
        case str():
            return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {storable(name): storable(item) for name, item in value.items()}
        case list():
            return [storable(item) for item in value]
        case _:
            return value

"""Makes a subprocess's output storable: PostgreSQL takes no NUL, no lone surrogates and no NaN."""

from __future__ import annotations

import math
from typing import Any


def storable(value: Any) -> Any:
    """Return a text or JSON value with characters and numbers replaced that the database refuses."""
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

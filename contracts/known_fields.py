"""Read messages that a newer program wrote: fields that this one does not know are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(cls: type[Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `value` that the dataclass `cls` has."""
    return {item.name: value[item.name] for item in fields(cls) if item.name in value}

"""A bound on how deeply JSON values nest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from worker_engine.errors import InvalidRequest

MAX_DEPTH: Final = 100
"""Levels of nesting in any one parameter."""


def demand_shallow(value: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a parameter deeper than MAX_DEPTH, so that code that walks it may recurse."""
    for name, item in value.items():
        level = [item]
        for _ in range(MAX_DEPTH):
            containers = [outer for outer in level if isinstance(outer, (dict, list))]
            if not containers:
                break
            parts = (outer.values() if isinstance(outer, dict) else outer for outer in containers)
            level = [inner for part in parts for inner in part]
        else:
            raise InvalidRequest(f"{name[:64]} is nested deeper than {MAX_DEPTH} levels", param=name[:64])

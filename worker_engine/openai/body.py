"""A request's body as a JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from worker_engine.errors import InvalidRequest

MAX_DEPTH: Final = 100
"""Levels of nesting in any one parameter."""


def parse_object(body: bytes) -> dict[str, Any]:
    """Raises InvalidRequest for what is no JSON object in UTF-8, or is nested too deeply."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    demand_shallow(value)
    return value


def demand_shallow(value: Mapping[str, Any]) -> None:
    """Whatever walks a schema or a message may recurse: nothing deep gets that far. Raises InvalidRequest."""
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

"""A request's body as a JSON object."""

from __future__ import annotations

from typing import Any

import orjson

from worker_engine.errors import InvalidRequest
from worker_engine.json_depth import demand_shallow


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

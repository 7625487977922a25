"""`/openapi.json`, written from the routes and from the parameters that check their bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from worker_engine.http.routes import Route

_ERROR: Final = {"type": "object"}
_VARIABLE: Final = re.compile(r"\{(\w+)\}")


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The worker's API as OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Graftwork worker", "version": "1"},
        "paths": paths,
        "components": {"securitySchemes": {"fleet_token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route) -> dict[str, Any]:
    good: dict[str, Any] = {kind: {"schema": {}} for kind in route.produces}
    refused = {"application/json": {"schema": _ERROR}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": {
            "200": {"description": "done", "content": good},
            "4XX": {"description": "refused, naming the parameter", "content": refused},
            "5XX": {"description": "not possible now", "content": refused},
        },
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.query,
            "content": {"application/json": {"schema": route.body}},
        }
    return operation if route.open else operation | {"security": [{"fleet_token": []}]}


def _parameters(route: Route) -> list[Mapping[str, Any]]:
    path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _VARIABLE.findall(route.template)
    ]
    query = [
        {"name": name, "in": "query", "required": name in route.required_query, "schema": schema}
        for name, schema in route.query.items()
    ]
    headers = [{"name": name, "in": "header", "schema": schema} for name, schema in route.headers.items()]
    return [*path, *query, *headers]

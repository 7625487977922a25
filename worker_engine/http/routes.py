"""A group of HTTP routes, each with its description for `/openapi.json`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from worker_engine.service import Service

SERVICE: Final = web.AppKey("service", Service)
_PATTERN: Final = re.compile(r":[^{}]*\}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the API.

    Attributes:
        path: with `{name}` for a variable segment, `{name:.+}` for one that may hold slashes.
        body: the JSON schema of its body; None when it takes none.
        query: JSON schemas of its query parameters by name.
        required_query: names of the required query parameters.
        produces: media types of a successful response.
        open: served without the fleet token.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    required_query: tuple[str, ...] = ()
    headers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    produces: tuple[str, ...] = ("application/json",)
    open: bool = False

    @property
    def template(self) -> str:
        """The path in OpenAPI syntax."""
        return _PATTERN.sub("}", self.path)


def check_model(service: Service, model: str) -> None:
    """Raise ModelNotFound unless `model` is the base model, an adapter registered here, or ''."""
    if model not in ("", service.config.served_model_name):
        service.registry.get(model, param="model")

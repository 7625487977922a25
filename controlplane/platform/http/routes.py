"""Routes of the REST API."""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, path
from django.views import View


def route(pattern: str, api: type[View], name: str, **options: Any) -> URLPattern:
    """Return the route of an API view; `options` go to `as_view`."""
    return path(pattern, api.as_view(**options), name=name)

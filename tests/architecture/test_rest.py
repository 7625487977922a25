"""Every REST route pages its lists, tags its objects and creates once, or a list here says why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from django.urls import URLPattern, URLResolver
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import api_urls
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.pagination import CursorPages
from controlplane.platform.idempotency.api import idempotent

# Name of a route -> why its GET is neither a list in pages nor an object with a tag.
REPORTS: Final = {
    "audit-export": "a file, written while it is read",
    "invoice-file": "a file, written while it is read",
    "fleet-invoice-file": "a file, written while it is read",
    "credit-note-file": "a file, written while it is read",
    "fleet-credit-note-file": "a file, written while it is read",
    "tenant-export": "a file, written while it is read",
    "fleet-audit-export": "a file, written while it is read",
    "usage": "sums over days, computed at each call; bounded by a year",
    "fleet-usage": "sums over days, computed at each call; bounded by a year",
    "organization-usage-completions": "OpenAI's form, with its own pages",
    "organization-costs": "OpenAI's form, with its own pages",
    "requests": "pages of its own: a filter is held against so many a page",
    "request": "what happened, which nobody changes",
    "request-prompt": "what was said, which nobody changes, and whose reading is recorded each time",
    "savings": "computed at each call of sums that grow",
    "hosting": "sums over hours, computed at each call; bounded in days",
    "fleet-hosting": "sums over hours, computed at each call; bounded in days",
    "fleet-attribution": "computed at each call of sums that grow",
    "fleet-savings": "computed at each call of sums that grow",
    "fleet-savings-estimate": "computed of what the query states",
    "fleet-instance-saving": "computed at each call of prices of a day",
    "fleet-blended-price": "computed at each call of sums that grow",
    "fleet": "what copies say at each call",
    "fleet-residency": "what copies say at each call",
    "health-checks": "two rows in Redis, read as cheaply as their tag would be made",
    "deployment-state": "what was seen last, and how much time has passed, at each call",
    "prices-in-force": "computed of the prices at each call",
    "health-parts": "what every part says at each call",
    "queues": "what Redis says at each call",
    "adapter-metrics": "metrics at each call",
    "tenant-adapter-metrics": "metrics at each call",
    "optimization-presets": "computed of what the query states",
    "jumpstart-models": "a table that comes with the product",
}
# Name of a route -> why its POST does not heed Idempotency-Key.
ACTIONS: Final[dict[str, str]] = {
    "usage-events": "an event's own source and id make it count once, however often it is sent",
    "adapter-checks": "it changes nothing",
    "uploads": "tus: a beginning that is lost costs an empty upload, which expires",
}
# (Name of a route, method) -> why its change does not heed If-Match.
UNCONDITIONAL: Final[dict[tuple[str, str], str]] = {
    ("upload", "patch"): "tus: Upload-Offset is its condition"
}

Routes = Iterator[tuple[str, Any]]


def routes(patterns: list[URLPattern | URLResolver]) -> Routes:
    """(name, view class) of each route, also below `include`."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns)
        else:
            yield str(pattern.name), getattr(pattern.callback, "cls")  # noqa: B009  # set by as_view


def faults(name: str, view: Any) -> list[str]:
    """List the conventions that a view breaks."""
    found = []
    if hasattr(view, "get") and name not in REPORTS:
        listed = issubclass(view, generics.ListAPIView) and issubclass(view.pagination_class, CursorPages)
        tagged = issubclass(view, ObjectApi) and hasattr(view.get, "conditional")
        if not (listed or tagged):
            found.append(
                f"GET {name}: neither a ListAPIView in CursorPages nor an ObjectApi with @conditional()"
            )
    if hasattr(view, "post") and name not in ACTIONS and not hasattr(view.post, "idempotent"):
        found.append(f"POST {name}: no @idempotent()")
    for method in ("put", "patch", "delete"):
        if not hasattr(view, method) or (name, method) in UNCONDITIONAL:
            continue
        if not (issubclass(view, ObjectApi) and hasattr(getattr(view, method), "conditional")):
            found.append(f"{method.upper()} {name}: not a @conditional() change of an ObjectApi")
    return found


def test_every_route_keeps_the_rules() -> None:
    patterns: list[URLPattern | URLResolver] = list(api_urls.urlpatterns)
    assert [fault for name, view in routes(patterns) for fault in faults(name, view)] == []


def test_exceptions_name_routes_that_there_are() -> None:
    names = {name for name, _ in routes(list(api_urls.urlpatterns))}
    excepted = {*REPORTS, *ACTIONS, *(name for name, _ in UNCONDITIONAL)}
    assert excepted <= names


class _Bare(generics.ListAPIView[Any]):
    pagination_class = None

    def post(self, request: Request) -> Response:
        return Response()

    def delete(self, request: Request) -> Response:
        return Response()


class _Whole(ObjectApi[Any]):
    @conditional()
    def get(self, request: Request) -> Response:
        return Response()

    @idempotent()
    def post(self, request: Request) -> Response:
        return Response()

    @conditional()
    def delete(self, request: Request) -> Response:
        return Response()


@pytest.mark.parametrize(("view", "count"), [(_Bare, 3), (_Whole, 0)])
def test_the_rules_tell_views_apart(view: Any, count: int) -> None:
    if view.pagination_class is None and issubclass(view, generics.ListAPIView):
        view = type("Unpaged", (view,), {"pagination_class": object})
    assert len(faults("new", view)) == count

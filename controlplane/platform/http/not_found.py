"""404 as JSON for unknown REST routes, and for URLs with a NUL character."""

from __future__ import annotations

import json
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase


def api_not_found(request: HttpRequest) -> HttpResponse:
    """Any other path below /api/."""
    return _answer("this route does not exist: see /api/v1/openapi.json for the list")


class NulMiddleware:
    """Answers 404 where a path holds a NUL character: no URL of ours does, and in a query PostgreSQL, whose
    text cannot hold one, would end in an error."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if "\0" in request.path_info:
            return _answer("the path must not contain a NUL character")
        return self._get_response(request)


def _answer(detail: str) -> HttpResponse:
    error = {"code": "not_found", "detail": detail, "attr": None}
    body = json.dumps({"type": "client_error", "errors": [error]})
    return HttpResponse(body, status=404, content_type="application/json")

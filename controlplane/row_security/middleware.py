"""Gives each request a scope, empty until its caller is known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

from django.http import HttpRequest
from django.http.response import HttpResponseBase, StreamingHttpResponse

from controlplane.row_security.scope import EVERYTHING, Scope, scope_set, scoped


class RowScopeMiddleware:
    """Directly around the views: whoever proves who the caller is calls `scope_set`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with scoped(Scope()) as scope:
            user = getattr(request, "user", None)
            if request.path_info.startswith("/admin/") and getattr(user, "is_staff", False):
                scope_set(tenant=EVERYTHING)
            response = self._get_response(request)
        # Pieces are made while they are sent, when the request itself is over.
        if isinstance(response, StreamingHttpResponse):
            body = response.streaming_content
            response.streaming_content = (
                _within_later(scope, body) if isinstance(body, AsyncIterator) else _within(scope, iter(body))
            )
        return response


def _within(scope: Scope, pieces: Iterator[bytes]) -> Iterator[bytes]:
    while True:
        with scoped(scope):
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


async def _within_later(scope: Scope, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        with scoped(scope):
            piece = await anext(pieces, None)
        if piece is None:
            return
        yield piece

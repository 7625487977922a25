"""Gives each request a scope, empty until its caller is known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from django.db import connection
from django.http import HttpRequest
from django.http.response import HttpResponseBase, StreamingHttpResponse

from controlplane.platform.row_security.scope import EVERYTHING, Scope, scope_set, scoped

_WRITING: Final = ("/accounts/", "/api/")
"""Where a GET may write as well: the identity provider's way back logs in, an API key is noted as used."""


class RowScopeMiddleware:
    """Directly around the views: whoever proves who the caller is calls `scope_set`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with scoped(Scope()) as scope, _reading(request):
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


def _reading(request: HttpRequest) -> AbstractContextManager[None]:
    """What is read for a GET is one transaction on PostgreSQL, where a scope is to be stated in each."""
    reads = request.method in ("GET", "HEAD") and not request.path_info.startswith(_WRITING)
    if reads and hasattr(connection, "one_transaction"):
        only: AbstractContextManager[None] = connection.one_transaction()
        return only
    return nullcontext()


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

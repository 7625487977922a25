"""Gives each request a row scope, which is empty until its caller is known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from django.db import connection
from django.http import HttpRequest
from django.http.response import HttpResponseBase, StreamingHttpResponse

from controlplane.platform.row_security.scope import EVERYTHING, Scope, scope_set, scoped

_WRITING: Final = ("/accounts/", "/api/")
"""Paths where a GET may write: the identity provider's redirect logs in, and API keys record their use."""


class RowScopeMiddleware:
    """Innermost middleware. The code that authenticates the caller fills the scope by `scope_set`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with scoped(Scope()) as scope, _reading(request):
            user = getattr(request, "user", None)
            if request.path_info.startswith("/admin/") and getattr(user, "is_staff", False):
                scope_set(tenant=EVERYTHING)
            response = self._get_response(request)
        # A streamed body is produced after this call returns, so each piece sets the scope again.
        if isinstance(response, StreamingHttpResponse):
            body = response.streaming_content
            response.streaming_content = (
                _scoped_pieces_async(scope, body)
                if isinstance(body, AsyncIterator)
                else _scoped_pieces(scope, iter(body))
            )
        return response


def _reading(request: HttpRequest) -> AbstractContextManager[None]:
    """Run a GET in one transaction on PostgreSQL, where each transaction has to set the scope."""
    reads = request.method in ("GET", "HEAD") and not request.path_info.startswith(_WRITING)
    if reads and hasattr(connection, "one_transaction"):
        one_transaction: AbstractContextManager[None] = connection.one_transaction()
        return one_transaction
    return nullcontext()


def _scoped_pieces(scope: Scope, pieces: Iterator[bytes]) -> Iterator[bytes]:
    while True:
        with scoped(scope):
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


async def _scoped_pieces_async(scope: Scope, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        with scoped(scope):
            piece = await anext(pieces, None)
        if piece is None:
            return
        yield piece

"""Streamed responses in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse


def streamed(
    request: HttpRequest, pieces: Iterator[bytes], *, content_type: str, file_name: str
) -> StreamingHttpResponse:
    """A download of `pieces`. They are made in the thread that has the request's database connection.

    Under ASGI Django would collect a plain iterator whole before it sends the first byte.
    """
    body = _later(pieces) if isinstance(request, ASGIRequest) else pieces
    response = StreamingHttpResponse(body, content_type=content_type)
    # A reader who leaves has no iterator closed by itself before the thread's connection goes to another
    # request: under ASGI the response's closers run in that thread, and before the connection goes.
    if response.is_async and (close := getattr(pieces, "close", None)) is not None:
        response._resource_closers.append(close)  # type: ignore[attr-defined]
    response["Content-Disposition"] = f'attachment; filename="{file_name}"'
    return response


async def _later(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    def following() -> bytes | None:
        return next(pieces, None)

    while (piece := await sync_to_async(following, thread_sensitive=True)()) is not None:
        yield piece

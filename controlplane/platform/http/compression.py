"""Gzip compression of responses; a streamed response becomes one gzip file."""

from __future__ import annotations

import gzip
import io
import secrets
from collections.abc import AsyncIterator
from typing import Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase, StreamingHttpResponse
from django.middleware.gzip import GZipMiddleware

_LEVEL: Final = 6


class WholeGZipMiddleware(GZipMiddleware):
    """Compresses an asynchronous stream as one gzip file.

    Django's middleware makes each piece its own gzip file, of which clients such as httpx read only the
    first: of an invoice's CSV they got the header line, without an error.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if not (isinstance(response, StreamingHttpResponse) and response.is_async):
            return super().process_response(request, response)
        encoded, pieces = response.has_header("Content-Encoding"), response.streaming_content
        response = super().process_response(request, response)
        if not encoded and response.has_header("Content-Encoding"):
            assert isinstance(response, StreamingHttpResponse)
            assert isinstance(pieces, AsyncIterator)
            response.streaming_content = _compressed(pieces, self.max_random_bytes)
        return response


async def _compressed(pieces: AsyncIterator[bytes], most_random: int) -> AsyncIterator[bytes]:
    # A file name of random length, as in Django's own, hides secrets in the response's length (BREACH).
    sink, name = io.BytesIO(), "a" * secrets.randbelow(most_random)
    with gzip.GzipFile(name, "wb", _LEVEL, sink, mtime=0) as file:
        async for piece in pieces:
            file.write(piece)
            if sink.tell():
                yield _taken(sink)
    yield _taken(sink)


def _taken(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data

"""Downloads that are written while they are read, as clients read them that know one gzip file alone."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.test import AsyncClient, override_settings
from django.urls import path

from controlplane.platform.http.streaming import streamed

_LINES = [f"line {number},{'x' * (number % 50)}\r\n".encode() for number in range(5000)]


def download(request: HttpRequest) -> HttpResponseBase:
    return streamed(request, iter(_LINES), content_type="text/csv", file_name="lines.csv")


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse(b"".join(_LINES))


urlpatterns = [path("download", download), path("page", page)]


async def _read(accepted: str) -> tuple[bytes, str | None, int]:
    answer = await AsyncClient().get("/download", headers={"Accept-Encoding": accepted})
    pieces = [piece async for piece in answer.streaming_content]  # type: ignore[attr-defined]
    return b"".join(pieces), answer.headers.get("Content-Encoding"), len(pieces)


@pytest.mark.django_db(transaction=True)
@override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["testserver"])
def test_a_stream_is_one_gzip_file() -> None:
    body, encoding, pieces = asyncio.run(_read("gzip"))
    assert encoding == "gzip"
    # As httpx does: what is behind the first file's end is nothing to them.
    reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert reader.decompress(body) + reader.flush() == b"".join(_LINES)
    assert (reader.eof, reader.unused_data) == (True, b"")
    assert len(body) * 4 < len(b"".join(_LINES)), "compressed as a whole, not line by line"
    assert pieces > 1, "and still sent while it is made"


@pytest.mark.django_db(transaction=True)
@override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["testserver"])
def test_who_does_not_ask_gets_it_as_it_is() -> None:
    body, encoding, _ = asyncio.run(_read("identity"))
    assert (body, encoding) == (b"".join(_LINES), None)


@pytest.mark.django_db(transaction=True)
@override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["testserver"])
def test_a_page_is_compressed_as_ever() -> None:
    answer = asyncio.run(AsyncClient().get("/page", headers={"Accept-Encoding": "gzip"}))
    assert gzip.decompress(answer.content) == b"".join(_LINES)

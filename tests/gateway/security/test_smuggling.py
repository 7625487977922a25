"""Requests that two servers could read in two ways: each is refused, or ends its connection.

Behind each such request stands `GET /healthz`: were it answered, a client could put its own requests in
between those that a proxy sends for others.
"""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from tests.gateway.conftest import GatewayProcess
from tests.gateway.security.conftest import CHAT, connect, exchange, read_all
from tests.gateway.test_app import ask
from tests.waiting import eventually

SMUGGLED = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
BODY = json.dumps({"model": "bot", "messages": ask(tokens=1)}).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def statuses(answer: bytes) -> list[int]:
    """Return the statuses of a connection's answers, in order."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"content-length: 4\r\ncontent-length: 40\r\n", b"{}{}"),
        (b"content-length: 4, 40\r\n", b"{}{}"),
        (b"content-length: 4\r\ncontent-length: 4\r\n", b"{}{}"),
        (b"content-length: 4, 4\r\n", b"{}{}"),
        (b"content-length: 4\r\ncontent-length: +4\r\n", b"{}{}"),
        (b"content-length: +4\r\n", b"{}{}"),
        (b"content-length: -1\r\n", b""),
        (b"content-length: 0x4\r\n", b"{}{}"),
        (b"content-length: 4 4\r\n", b"{}{}"),
        (b"content-length: 99999999999999999999\r\n", b"{}{}"),
        (b"content-length : 4\r\n", b"{}{}"),
        (b"transfer-encoding: xchunked\r\n", b"0\r\n\r\n"),
        (b"transfer-encoding: identity\r\n", b""),
        (b"transfer-encoding: chunked, identity\r\n", b"0\r\n\r\n"),
        (b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", b"0\r\n\r\n"),
        (b"transfer-encoding: \x0bchunked\r\n", b"0\r\n\r\n"),
        (b"transfer-encoding : chunked\r\n", b"0\r\n\r\n"),
        (b"transfer-encoding:\r\n chunked\r\n", b"0\r\n\r\n"),
        (b"x-fold: a\r\n b\r\ncontent-length: 0\r\n", b""),
        (b"x-null: a\0b\r\ncontent-length: 0\r\n", b""),
        (b"x-cr: a\rb\r\ncontent-length: 0\r\n", b""),
        (b" content-length: 0\r\n", b""),
        (b"no-colon\r\n", b""),
        (b"x-lf: a\ncontent-length: 0\r\n", b""),
        (b"content-length: 0\n", b""),
        (b"host: y\r\ncontent-length: 0\r\n", b""),
        (LENGTH + b"transfer-encoding: chunked\r\n", CHUNKED),
        (b"transfer-encoding: chunked\r\n" + LENGTH, CHUNKED),
        (b"content-length: 0\r\ntransfer-encoding: chunked\r\n", CHUNKED),
    ],
)
def test_a_malformed_frame_is_refused(steady: GatewayProcess, headers: bytes, body: bytes) -> None:
    answer = exchange(steady, CHAT + headers + b"\r\n" + body + SMUGGLED)
    assert statuses(answer) == [400]


@pytest.mark.parametrize(
    "headers",
    [
        LENGTH + b"transfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\n" + LENGTH,
        b"content-length: 0\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 0\r\n",
    ],
)
def test_a_length_beside_chunks_is_refused(steady: GatewayProcess, headers: bytes) -> None:
    for end in (CHUNKED, b"0\r\n\r\n"):
        answer = exchange(steady, CHAT + headers + b"\r\n" + end + SMUGGLED)
        assert statuses(answer) == [400]
    for path in (b"/healthz", b"/v1/models"):
        start = b"GET " + path + b" HTTP/1.1\r\nhost: x\r\n"
        assert statuses(exchange(steady, start + headers + b"\r\n" + CHUNKED + SMUGGLED)) == [400]


def test_lines_end_as_the_standard_has_it(steady: GatewayProcess) -> None:
    """A head of bare LF never ends for us: all bytes after it belong to one malformed request."""
    answer = exchange(steady, b"GET /healthz HTTP/1.1\nhost: x\n\n" + SMUGGLED)
    assert statuses(answer) == [400]


@pytest.mark.parametrize(
    "chunks",
    [
        b"5;" + b"x" * 70_000 + b"\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"5;a\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_malformed_chunks_end_the_connection(steady: GatewayProcess, chunks: bytes) -> None:
    answer = exchange(steady, CHAT + b"transfer-encoding: chunked\r\n\r\n" + chunks + SMUGGLED)
    assert statuses(answer) == [400]
    assert b"chunks are malformed" in answer


def test_chunked_is_the_only_encoding(steady: GatewayProcess) -> None:
    """With several encodings some servers use the last; a proxy in front may use the first."""
    headers = b"connection: close\r\ntransfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = exchange(steady, CHAT + headers + CHUNKED)
    assert statuses(answer) == [400]


def test_whole_chunks_are_a_body(steady: GatewayProcess) -> None:
    start = CHAT + b"transfer-encoding: chunked\r\n\r\n"
    pieces = b"".join(
        b"%x;a=b\r\n%s\r\n" % (len(BODY[i : i + 7]), BODY[i : i + 7]) for i in range(0, len(BODY), 7)
    )
    assert statuses(exchange(steady, start + pieces + b"0\r\n\r\n" + SMUGGLED)) == [200, 200]


def test_requests_one_after_another_are_each_answered(steady: GatewayProcess) -> None:
    """The counting of these tests would see a second answer."""
    answer = exchange(steady, CHAT + LENGTH + b"\r\n" + BODY + SMUGGLED)
    assert statuses(answer) == [200, 200]


def test_a_body_that_ends_early_reaches_no_backend(steady: GatewayProcess, upstream: str) -> None:
    before = len(httpx.get(upstream + "/log").json())
    with connect(steady) as connection:
        connection.sendall(CHAT + b"content-length: 4000\r\n\r\n" + BODY)
        connection.shutdown(socket.SHUT_WR)
        assert 200 not in statuses(read_all(connection))
    eventually(lambda: httpx.get(steady.url + "/healthz").status_code == 200)
    assert len(httpx.get(upstream + "/log").json()) == before

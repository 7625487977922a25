"""Heads of requests: what is read, what is refused, and that two other parsers read the same."""

from __future__ import annotations

import random
from typing import Any

import h11
import httptools
import pytest

from gateway.http.server.head import Refused, parse

START = b"POST /v1/x?a=1 HTTP/1.1\r\nhost: x\r\n"


def test_what_a_client_sends() -> None:
    head = parse(
        b"POST /v1/mod%C3%A9ls/a%20b?q=%20 HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n"
        b"X-Two: \t a b \t\r\nx-empty:\r\nExpect: 100-Continue\r\nx-two:c\r\n\r\n"
    )
    assert (head.method, head.path, head.query) == ("POST", "/v1/mod\u00e9ls/a b", b"q=%20")
    assert head.raw_path == b"/v1/mod%C3%A9ls/a%20b"
    assert (head.http_version, head.length, head.keep_alive, head.expects_continue) == ("1.1", 12, True, True)
    assert head.headers[2:] == [
        (b"x-two", b"a b"),
        (b"x-empty", b""),
        (b"expect", b"100-Continue"),
        (b"x-two", b"c"),
    ]


@pytest.mark.parametrize(
    ("start", "headers", "keeps"),
    [
        (b"GET / HTTP/1.1", b"host: x", True),
        (b"GET / HTTP/1.1", b"host: x\r\nconnection: close", False),
        (b"GET / HTTP/1.1", b"host: x\r\nConnection: te, Close", False),
        (b"GET / HTTP/1.1", b"host: x\r\nConnection: te\r\nconnection: close", False),
        (b"GET / HTTP/1.0", b"x: y", False),
        (b"GET / HTTP/1.0", b"connection: Keep-Alive", True),
    ],
)
def test_whether_the_connection_goes_on(start: bytes, headers: bytes, keeps: bool) -> None:
    assert parse(start + b"\r\n" + headers + b"\r\n\r\n").keep_alive is keeps


@pytest.mark.parametrize(
    ("target", "path"),
    [(b"http://x/a?b", "/a"), (b"HTTPS://x:1", "/"), (b"http://x?b", "/"), (b"/", "/"), (b"//x/a", "//x/a")],
)
def test_a_target_as_proxies_send_it(target: bytes, path: str) -> None:
    assert parse(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n").path == path
    assert parse(b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n").path == "*"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\nhost: x\n\n",
        b"GET / HTTP/1.1\r\nhost: x\nx: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.2\r\nhost: x\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        b"GET /\r\nhost: x\r\n\r\n",
        b"GET  / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / a HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1 \r\nhost: x\r\n\r\n",
        b"G@T / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET x HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET * HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET ftp://x/ HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT http://x/ HTTP/1.1\r\nhost: x\r\n\r\n",
        START + b"content-length: 3\r\ncontent-length: 3\r\n\r\n",
        START + b"content-length: 3, 3\r\n\r\n",
        START + b"content-length:\r\n\r\n",
        START + b"content-length: \xb2\r\n\r\n",
        START + b"content-length: 1_0\r\n\r\n",
        START + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        START + b"transfer-encoding: chunked, chunked\r\n\r\n",
        START + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        START + b"transfer-encoding: gzip, chunked\r\n\r\n",
        START + b"transfer-encoding:\r\n\r\n",
        START + b"x y: z\r\n\r\n",
        START + b": z\r\n\r\n",
        START + b"x: \x7f\r\n\r\n",
        b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        parse(data)
    assert caught.value.status == 400


def test_headers_have_a_largest_number() -> None:
    most = START + b"".join(b"x-%d: y\r\n" % number for number in range(99))
    assert len(parse(most + b"\r\n").headers) == 100
    with pytest.raises(Refused) as caught:
        parse(most + b"x: y\r\n\r\n")
    assert caught.value.status == 431


PIECES = [
    b"content-length: 5\r\n",
    b"Content-Length:5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b"\0",
    b"\x0b",
    b"\xff",
    b",",
    b"5",
    b"+",
    b"chunked",
    b"identity",
    b"host: x\r\n",
    b"x: y\r\n",
    b"X-A:b\r\n",
    b" folded\r\n",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"connection: close\r\n",
    b"expect: 100-continue\r\n",
]


def mutated(rng: random.Random) -> bytes:
    """A request's head with a few things put in or taken out, up to its first empty line."""
    data = START + b"".join(rng.choices(PIECES[:3] + PIECES[17:20], k=rng.randrange(4)))
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice(PIECES) + data[at + rng.randrange(3) :]
    end = data.find(b"\r\n\r\n")
    return data + b"\r\n" if end < 0 else data[: end + 4]


@pytest.mark.costly("a property over many heads")
def test_what_is_accepted_others_read_alike() -> None:
    rng = random.Random(11)
    accepted = framed = both = 0
    for _ in range(30_000):
        data = mutated(rng)
        try:
            head = parse(data)
        except Refused:
            continue
        accepted += 1
        framed += head.length != 0
        assert by_h11(data) == (head.method.encode(), head.headers, head.length), data
        if (seen := by_llhttp(data)) is not None:
            assert seen == (head.headers, head.keep_alive), data
            both += 1
    assert accepted > 5000
    assert framed > 1000
    assert both > 4000


def by_h11(data: bytes) -> tuple[bytes, list[tuple[bytes, bytes]], int | None]:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data + b"12345")
    request: Any = connection.next_event()
    assert type(request) is h11.Request, data
    headers = list(request.headers)
    chunked = any(name == b"transfer-encoding" for name, _ in headers)
    lengths = [int(value) for name, value in headers if name == b"content-length"]
    return request.method, headers, None if chunked else (lengths or [0])[0]


def by_llhttp(data: bytes) -> tuple[list[tuple[bytes, bytes]], bool] | None:
    """Parse with llhttp; None if it refuses the head."""

    class RequestTrace:
        headers: list[tuple[bytes, bytes]] = []
        keeps = False

        def on_header(self, name: bytes, value: bytes) -> None:
            # llhttp leaves white space at the end of a value.
            self.headers = [*self.headers, (name.lower(), value.strip(b" \t"))]

        def on_headers_complete(self) -> None:
            self.keeps = parser.should_keep_alive()

    seen = RequestTrace()
    parser = httptools.HttpRequestParser(seen)
    try:
        parser.feed_data(data)
    except httptools.HttpParserError:
        return None
    return seen.headers, seen.keeps

"""However slowly the other side drips, an outgoing request is over in time. Servers are real, on loopback."""

from __future__ import annotations

import dataclasses
import ssl
from pathlib import Path

import httpx2
import pytest
from pytest_django import Settings

from controlplane.platform.http import outgoing
from controlplane.platform.http.outgoing import outgoing_client
from controlplane.platform.open_endpoints import OpenEndpoints
from tests.dripping import OK, dripping, lasting
from tests.gateway.security.certificates import Authority


@pytest.fixture(autouse=True)
def opened(settings: Settings) -> None:
    opened = OpenEndpoints.parse(["127.0.0.1"])
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, outgoing_allow=opened)


@pytest.mark.parametrize(
    ("prompt", "drip"),
    [
        (b"", b"x"),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        (OK, b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["nothing", "a header", "headers", "a body", "chunks", "continue"],
)
def test_whatever_drips_is_over_in_time(prompt: bytes, drip: bytes) -> None:
    with dripping(prompt, drip=drip) as server, lasting(2.9):
        with outgoing_client(total=3) as client, pytest.raises(httpx2.TimeoutException):
            client.get(server.url)
        assert server.connections == 1


def test_pieces_come_as_they_drip_and_then_it_is_over() -> None:
    with dripping(OK) as server, outgoing_client(total=3.5) as client, lasting(3.4):  # noqa: SIM117
        with client.stream("GET", server.url) as reply:
            pieces = reply.iter_raw()
            assert [next(pieces) for _ in range(3)] == [b"x"] * 3
            with pytest.raises(httpx2.ReadTimeout):
                next(pieces)


def test_a_handshake_and_a_body_under_tls_are_over_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    outgoing._tls.cache_clear()
    try:
        with dripping(OK) as server, outgoing_client(total=2) as client:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(authority.issue("server").both)
            server.context = context
            with lasting(1.9), pytest.raises(httpx2.ReadTimeout):
                client.get(server.url.replace("http", "https"))
        # Not TLS at all: a byte of a handshake a second.
        hello = b"\x16\x03\x03\x40\x00"
        late = pytest.raises(httpx2.ConnectTimeout)
        with dripping(hello) as server, outgoing_client(total=2) as client, lasting(1.9), late:
            client.get(server.url.replace("http", "https"))
    finally:
        outgoing._tls.cache_clear()


def test_redirects_share_one_time() -> None:
    # Five are followed, so by themselves they would take 5 s.
    location = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nConnection: close\r\nLocation: /again\r\n\r\n"
    late = pytest.raises(httpx2.ReadTimeout)
    with dripping(b"", drip=location, every=0.9) as server, lasting(1.9):  # noqa: SIM117
        with outgoing_client(total=2, follow_redirects=True) as client, late:
            client.get(server.url)


def test_a_reader_that_takes_a_byte_a_second_is_left() -> None:
    late = pytest.raises(httpx2.WriteTimeout)
    with dripping(reads=False) as server, outgoing_client(total=2) as client, lasting(1.9), late:
        client.post(server.url, content=b"x" * (16 << 20))


def test_the_head_has_less_time_than_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "HEAD_S", 1.0)
    late = pytest.raises(httpx2.ReadTimeout)
    # The body's time would be longer than the test's.
    with dripping() as server, outgoing_client(total=1000) as client, lasting(0.9), late:
        client.get(server.url)
    with dripping(OK) as server, outgoing_client(total=3) as client, lasting(2.9), late:
        client.get(server.url)


def test_one_client_gives_each_request_its_own_time() -> None:
    prompt = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n"
    with dripping(prompt) as server, outgoing_client(total=1.6) as client:
        for _ in range(3):
            assert client.get(server.url).content == b"x"

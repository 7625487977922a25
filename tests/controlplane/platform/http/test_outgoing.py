"""Requests to a tenant's URL reach only the public internet and the networks that are allowed."""

from __future__ import annotations

import dataclasses
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest
from pytest_django import Settings

from contracts.environment import SettingsError
from controlplane.errors import InvalidInputError, OutgoingRefusedError
from controlplane.platform.environment import Environment
from controlplane.platform.http import outgoing
from controlplane.platform.http.outgoing import check_outgoing_url, is_public, outgoing_client
from controlplane.platform.open_endpoints import OpenEndpoints
from tests.gateway.security.certificates import Authority


class Listener:
    """A loopback HTTP server that counts its requests and sends configured redirects."""

    def __init__(self) -> None:
        listener, self.requests, self.location = self, list[str](), ""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.requests.append(self.path)
                self.send_response(302 if listener.location else 200)
                self.send_header("Location", listener.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def listeners() -> Iterator[tuple[Listener, Listener]]:
    both = Listener(), Listener()
    yield both
    for listener in both:
        listener.server.shutdown()
        listener.server.server_close()


def allow(settings: Settings, *entries: str) -> None:
    opened = OpenEndpoints.parse(entries)
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, outgoing_allow=opened)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """The DNS gives these answers in turn; returns the list that names asked for are written to."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(0, 0, 0, "", (address, port)) for address in answers[min(len(asked), len(answers)) - 1]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses of attempted connections; none is made."""
    attempts: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], *_: Any, **__: Any) -> socket.socket:
        attempts.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    return attempts


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.1.1",
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "2001:db8::1",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "::ffff:1.1.1.1", "2606:4700:4700::1111"])
def test_addresses_that_are(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:169.254.169.254]/",
        "https://10.0.0.1:8443/x",
        "http://hub.example/",
        "ftp://hub.example/",
        "https:///x",
        "hub.example",
        "file:///etc/passwd",
        "",
        "https://user@hub.example/",
        "https://user:secret@hub.example/",
        "https://hub.example@10.0.0.1/",
        "https://hub.example\\@10.0.0.1/",
        "https://hub.example /",
        "https://hub.example/\r\nHost: x",
        "https://hub.example/#@10.0.0.1",
        "https://hub.example:99999/",
        "https://１２７.0.0.1/",
        "https://[::1",
    ],
)
def test_urls_that_are_refused_as_written(url: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot be called") as refusal:
        check_outgoing_url(url, field="endpoint")
    assert refusal.value.field == "endpoint"


def test_a_public_url_is_taken_as_it_is() -> None:
    assert check_outgoing_url("https://hub.example:8443/a?b=c", field="x") == "https://hub.example:8443/a?b=c"


@pytest.mark.parametrize(
    "host", ["localhost", "0x7f.1", "2130706433", "127.1", "0177.0.0.1", "[::1]", "127.0.0.1"]
)
def test_every_spelling_of_this_machine_is_refused_before_a_connection(
    host: str, connected: list[tuple[str, int]]
) -> None:
    with outgoing_client() as client, pytest.raises((OutgoingRefusedError, httpx2.InvalidURL)):
        client.get(f"https://{host}:8443/")
    assert connected == []


def test_a_name_is_resolved_once_and_connected_to_where_it_was_judged(
    monkeypatch: pytest.MonkeyPatch, connected: list[tuple[str, int]]
) -> None:
    asked = resolve_to(monkeypatch, ["93.184.215.14", "2606:4700::1"], ["127.0.0.1"])
    with outgoing_client() as client, pytest.raises(httpx2.ConnectError):
        client.get("https://rebinding.example/")
    assert asked == ["rebinding.example"]
    assert connected == [("93.184.215.14", 443), ("2606:4700::1", 443)]


@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:10.0.0.1", "fd00:ec2::254", "fe80::1%lo"])
def test_one_address_among_public_ones_refuses_the_name(
    monkeypatch: pytest.MonkeyPatch, connected: list[tuple[str, int]], address: str
) -> None:
    resolve_to(monkeypatch, ["93.184.215.14", address])
    with (
        outgoing_client() as client,
        pytest.raises(OutgoingRefusedError, match="not a public internet address"),
    ):
        client.get("https://mixed.example/")
    assert connected == []


def test_redirects_are_judged_as_the_first_request_is(
    listeners: tuple[Listener, Listener], settings: Settings
) -> None:
    opened, closed = listeners
    allow(settings, f"127.0.0.1:{opened.port}")
    for location in (
        f"http://127.0.0.1:{closed.port}/",
        f"http://localhost:{closed.port}/",
        f"https://[::1]:{closed.port}/",
        f"http://x@127.0.0.1:{opened.port}/",
        "file:///etc/passwd",
        "http://hub.example/",
    ):
        opened.location = location
        refused = pytest.raises((OutgoingRefusedError, httpx2.UnsupportedProtocol))
        with outgoing_client(follow_redirects=True) as client, refused:
            client.get(f"http://127.0.0.1:{opened.port}/start")
    assert closed.requests == []
    assert opened.requests == ["/start"] * 6


def test_what_the_operator_opened_is_reached_by_host_port_or_network(
    listeners: tuple[Listener, Listener], settings: Settings
) -> None:
    one, two = listeners
    for entries in ([f"localhost:{one.port}"], ["LOCALHOST"], ["127.0.0.0/8", "::1/128", "localhost:1"]):
        allow(settings, *entries)
        host = "127.0.0.1" if "/" in entries[0] else "localhost"
        with outgoing_client() as client:
            assert client.get(f"http://{host}:{one.port}/").status_code == 200
    allow(settings, f"localhost:{one.port}")
    with outgoing_client() as client, pytest.raises(OutgoingRefusedError):
        client.get(f"http://localhost:{two.port}/")
    assert two.requests == []


def test_proxies_of_the_environment_are_not_used(
    listeners: tuple[Listener, Listener], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, proxy = listeners
    allow(settings, f"127.0.0.1:{opened.port}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    with outgoing_client() as client:
        client.get(f"http://127.0.0.1:{opened.port}/")
    assert (opened.requests, proxy.requests) == (["/"], [])


def test_tls_holds_the_server_to_its_name_though_an_address_is_connected_to(
    listeners: tuple[Listener, Listener], settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    outgoing._tls.cache_clear()
    listener = listeners[0]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("server").both)
    listener.server.socket = context.wrap_socket(listener.server.socket, server_side=True)
    allow(settings, "127.0.0.1", "localhost")
    try:
        with outgoing_client() as client:
            assert client.get(f"https://127.0.0.1:{listener.port}/").status_code == 200
            with pytest.raises(httpx2.ConnectError, match="localhost"):
                client.get(f"https://localhost:{listener.port}/")
    finally:
        outgoing._tls.cache_clear()


def test_a_socket_file_is_no_way_out() -> None:
    with pytest.raises(OutgoingRefusedError):
        outgoing._GuardedBackend().connect_unix_socket("/run/docker.sock")
    assert issubclass(outgoing._GuardedBackend, httpcore2.NetworkBackend)


@pytest.mark.parametrize("entry", ["10.0.0.1/8", "http://x", "a:99999", "x y", "host/path"])
def test_a_malformed_opening_is_named(entry: str) -> None:
    with pytest.raises(SettingsError, match="GRAFTWORK_OUTGOING_ALLOW"):
        Environment.from_env({"GRAFTWORK_OUTGOING_ALLOW": entry, "GRAFTWORK_SECRET_KEY": "x"})

"""Clients that drip, idle, or do not read: each is waited for so long, and others are served meanwhile."""

from __future__ import annotations

import json
import re
import resource
import socket
import time
from pathlib import Path

import pytest

from tests.gateway.conftest import ControlPlane, GatewayProcess, route_table
from tests.gateway.security.conftest import CHAT, connect, drip, read_all, serves
from tests.gateway.test_app import ask

pytestmark = pytest.mark.costly("fills connections")

EVENT = re.compile(rb'"content":"tok')


def test_dripped_headers_are_not_waited_for(strict: GatewayProcess) -> None:
    with connect(strict) as connection:
        connection.sendall(CHAT + b"x-slow: ")
        drip(connection, b"a" * 1000)
        assert b" 200 " not in read_all(connection)
    assert serves(strict)


def test_a_dripped_body_is_not_waited_for(strict: GatewayProcess) -> None:
    with connect(strict) as connection:
        connection.sendall(CHAT + b"content-length: 1000\r\n\r\n")
        drip(connection, b" " * 1000)
        answer = read_all(connection)
    assert answer[:12] == b"HTTP/1.1 408"
    assert b'"code":"request_timeout"' in answer


def test_a_stranger_is_not_listened_to(strict: GatewayProcess) -> None:
    """Without a key no byte of a body is waited for."""
    with connect(strict) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\n"
        )
        assert connection.recv(12) == b"HTTP/1.1 401"


STATES = (b"", b"G", b"GET /healthz HTTP/1.1\r\nx: y\r\n", CHAT + b"content-length: 500\r\n\r\n{")
"""In which a client may leave a connection before its request is whole."""


def test_idle_and_slow_connections_are_closed(strict: GatewayProcess) -> None:
    connections = [connect(strict) for _ in range(40)]
    for number, connection in enumerate(connections):
        if state := STATES[number % len(STATES)]:
            connection.sendall(state)
    for connection in connections:
        with connection:
            read_all(connection)  # returns only when the gateway closes the connection


def test_many_connections_keep_nobody_out(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    """1500 connections exceed the server's own default, and none is at its deadline yet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    control_plane.publish(route_table(upstream))
    own_gateway.environ = {"GRAFTWORK_GATEWAY_HEADER_SECONDS": "300", "GRAFTWORK_GATEWAY_BODY_SECONDS": "300"}
    own_gateway.start()
    connections = []
    try:
        for number in range(1500):
            connections.append(connect(own_gateway))
            if state := STATES[number % len(STATES)]:
                connections[-1].sendall(state)
        assert serves(own_gateway)
    finally:
        for connection in connections:
            connection.close()


def serving_process(gateway: GatewayProcess) -> int:
    """Return the pid of the serving process, a child of the started one."""
    assert gateway.process is not None
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        command = (status.parent / "cmdline").read_bytes()
        if int(fields[1]) == gateway.process.pid and b"resource_tracker" not in command:
            return int(status.parent.name)
    pytest.fail("the gateway has no serving process")


def memory(pid: int) -> int:
    """Resident bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) * 1024


@pytest.mark.parametrize("headers", [b"", b"idempotency-key: slow-reader\r\n"])
@pytest.mark.costly("fills a connection's buffers")
def test_a_client_that_does_not_read_a_stream_is_dropped_and_billed(
    strict: GatewayProcess, control_plane: ControlPlane, headers: bytes
) -> None:
    """The backend is held back, not buffered; then it is cancelled, and what it had sent is billed."""
    assert serves(strict)
    pid = serving_process(strict)
    before = memory(pid)
    tokens = 100_000  # about 35 MB of events
    body = json.dumps({"model": "bot", "stream": True, "messages": ask(tokens=tokens)}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", strict.port))
        connection.sendall(CHAT + headers + b"content-length: %d\r\n\r\n" % len(body) + body)
        first = b""
        while not EVENT.search(first):
            first += connection.recv(4096)
        [event] = control_plane.wait_events(1)
        grown = memory(pid) - before
        assert serves(strict)
        seen = len(EVENT.findall(first + read_all(connection)))
    assert (event.status, event.error_code, event.estimated) == ("cancelled", "", False)
    assert 0 < seen <= event.completion_tokens < tokens
    assert grown < 15 << 20


def test_a_client_that_reads_slowly_gets_all(strict: GatewayProcess, control_plane: ControlPlane) -> None:
    """Slow is not stalled: each wait is shorter than what is waited for."""
    body = json.dumps({"model": "bot", "stream": True, "messages": ask(tokens=20_000)}).encode()
    received = []
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", strict.port))
        connection.sendall(CHAT + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        while part := connection.recv(32 << 10):
            received.append(part)
            time.sleep(0.02)
    answer = b"".join(received)
    [event] = control_plane.wait_events(1)
    assert b"[DONE]" in answer[-100:]
    assert (event.status, event.completion_tokens) == ("ok", 20_000)

"""A gateway whose patience is short, and bytes sent to it by hand."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
import redis

from contracts.keys import KeyRoute, KeyScope
from contracts.route_table import RouteTable
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, route_table

PATIENCE = 2
"""Seconds that the gateway waits for headers, for a body, and for a client to read."""
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + ACME.encode() + b"\r\n"


def held(secret: str, **scope: tuple[str, ...]) -> KeyRoute:
    """A key of acme that is held to something."""
    return KeyRoute("acme", hashlib.sha256(secret.encode()).hexdigest(), scope=KeyScope(**scope))


def connect(gateway: GatewayProcess) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Read until the other side closes, which must happen within the socket's timeout."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def exchange(gateway: GatewayProcess, data: bytes) -> bytes:
    """Send `data`; return the gateway's bytes up to its close of the connection."""
    with connect(gateway) as connection:
        connection.sendall(data)
        return read_all(connection)


def serves(gateway: GatewayProcess) -> bool:
    """Return True if the gateway serves another client right now."""
    answer = httpx.get(gateway.url + "/v1/models", headers={"authorization": f"Bearer {ACME}"}, timeout=20)
    return answer.status_code == 200


def drip(connection: socket.socket, data: bytes, *, every: float = 0.1, seconds: float = 60) -> None:
    """Sends a byte now and then until the other side has had enough; fails when it never has."""
    until = time.monotonic() + seconds
    connection.setblocking(False)
    position = 0
    while time.monotonic() < until:
        try:
            connection.send(data[position : position + 1])
            position += 1
            if connection.recv(1, socket.MSG_PEEK) is not None:
                break
        except BlockingIOError:
            pass
        except (ConnectionResetError, BrokenPipeError):
            break
        time.sleep(every)
    else:
        pytest.fail(f"the gateway still listens after {seconds} s")
    connection.setblocking(True)
    connection.settimeout(30)


@pytest.fixture(scope="package")
def _strict_gateway(lasting_redis: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("strict")
    gateway = GatewayProcess(lasting_redis, folder / "wal", folder / "log")
    gateway.environ = {
        "GRAFTWORK_GATEWAY_HEADER_SECONDS": str(PATIENCE),
        "GRAFTWORK_GATEWAY_BODY_SECONDS": str(PATIENCE),
        "GRAFTWORK_GATEWAY_STALL_SECONDS": str(PATIENCE),
        "GRAFTWORK_TRUSTED_PROXIES": "127.0.0.0/30",
        "GRAFTWORK_OPENAI_HTTP_KEY": "backend-key-hush",
    }
    gateway.start(ready=False)
    yield gateway
    gateway.stop()


@pytest.fixture
def strict(_strict_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str) -> GatewayProcess:
    """A running gateway that knows `route_table(upstream)` and keys that are held to something."""
    _publish(_strict_gateway, control_plane, upstream)
    return _strict_gateway


@pytest.fixture(scope="module")
def steady(_strict_gateway: GatewayProcess, lasting_redis: str, upstream: str) -> GatewayProcess:
    """A gateway for tests that change no route and read no usage: routes are published once per file."""
    with redis.Redis.from_url(lasting_redis) as client:
        client.flushdb()
        _publish(_strict_gateway, ControlPlane(client), upstream)
    return _strict_gateway


def _publish(gateway: GatewayProcess, control_plane: ControlPlane, upstream: str) -> None:
    version = (httpx.get(gateway.url + "/readyz").json()["routes_version"] or 0) + 1
    table = route_table(upstream)
    keys = {
        **table.keys,
        "models": held("m", models=("bot@prod",)),
        "endpoints": held("e", endpoints=("chat/completions", "models")),
        "networks": held("n", networks=("192.0.2.0/24", "2001:db8::/32")),
        "local": held("l", networks=("127.0.0.0/8",)),
    }
    control_plane.publish(RouteTable(version, keys, table.tenants, table.bases, table.adapters))
    gateway.wait_version(version)

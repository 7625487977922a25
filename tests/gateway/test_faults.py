"""Billing when something breaks: hang-ups, kills, and an absent Redis or backend."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from demo.valkey import server_command
from tests.conftest import free_port, stop
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, route_table
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")

HEADERS = {"authorization": f"Bearer {ACME}"}


def upstream_entry(upstream: str, request_id: str) -> dict[str, Any]:
    [entry] = [item for item in httpx.get(upstream + "/log").json() if item["id"] == request_id]
    return dict(entry)


def read_some(gateway: GatewayProcess, *, tokens: int, seconds: float = 0.0) -> tuple[str, int]:
    """Streams, hangs up after `tokens` tokens and `seconds`; request id and tokens seen."""
    body = {"model": "bot", "stream": True, "messages": ask(tokens=500, delay=0.01)}
    until = time.monotonic() + seconds
    seen = 0
    with (
        httpx.Client() as api,
        api.stream("POST", gateway.url + "/v1/chat/completions", json=body, headers=HEADERS) as answer,
    ):
        for line in answer.iter_lines():
            seen += line.startswith("data: ")
            if seen >= tokens and time.monotonic() >= until:
                break
    return answer.headers["x-request-id"], seen


def test_a_hang_up_cancels_the_backend_and_bills_what_came(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    request_id, seen = read_some(gateway, tokens=20)
    eventually(lambda: upstream_entry(upstream, request_id)["closed"])
    [event] = control_plane.wait_events(1)
    assert (event.status, event.request_id) == ("cancelled", request_id)
    sent = upstream_entry(upstream, request_id)["sent"]
    assert seen <= event.completion_tokens <= sent < 500


def test_a_hang_up_before_the_first_byte(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    body = json.dumps({"model": "bot", "messages": ask(tokens=100, before=30)}).encode()
    httpx.get(upstream + "/busy")
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            + ACME.encode()
            + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
            + body
        )
        eventually(lambda: httpx.get(upstream + "/busy").json()["most"])
    [event] = control_plane.wait_events(1)
    assert (event.status, event.completion_tokens) == ("cancelled", 0)
    assert (event.prompt_tokens > 0, event.estimated) == (True, True), "the copy had begun to answer"


def test_kill_9_bills_all_but_the_last_second(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(route_table(upstream))
    own_gateway.start()
    body = {"model": "bot", "stream": True, "messages": ask(tokens=500, delay=0.01)}
    seen, request_id = 0, ""
    try:
        with (
            httpx.Client() as api,
            api.stream(
                "POST", own_gateway.url + "/v1/chat/completions", json=body, headers=HEADERS
            ) as answer,
        ):
            request_id = answer.headers["x-request-id"]
            for line in answer.iter_lines():
                seen += line.startswith("data: ")
                if seen == 170 and own_gateway.process is not None:
                    own_gateway.process.kill()
    except httpx.TransportError:
        pass
    assert control_plane.events() == []
    own_gateway.kill()
    own_gateway.start()
    [event] = control_plane.wait_events(1)
    assert (event.status, event.error_code) == ("interrupted", "gateway_died")
    assert event.request_id == request_id
    assert seen - 100 <= event.completion_tokens <= upstream_entry(upstream, event.request_id)["sent"]
    own_gateway.stop()
    own_gateway.start()
    # Events are shipped in order: a duplicate would come before this one.
    latest = _request(own_gateway)
    assert [event.request_id for event in control_plane.wait_events(2)] == [request_id, latest]


def test_an_outage_of_redis_loses_and_doubles_nothing(
    own_gateway: GatewayProcess, tmp_path: Path, upstream: str
) -> None:
    port = free_port()
    (tmp_path / "valkey").mkdir()
    command = server_command(port=port, folder=tmp_path / "valkey")
    own_gateway.redis_url = f"redis://127.0.0.1:{port}/0"
    own_gateway.start(ready=False)
    waiting = httpx.get(own_gateway.url + "/readyz")
    assert waiting.status_code == 503
    assert "Redis" in waiting.json()["reasons"][0]
    assert post(own_gateway, {"model": "bot", "messages": ask(tokens=1)}).status_code == 503

    server = subprocess.Popen([*command, "--appendfsync", "always"], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:
            eventually(lambda: _pings(client))
            plane = ControlPlane(client)
            plane.publish(route_table(upstream))
            eventually(lambda: httpx.get(own_gateway.url + "/readyz").status_code == 200)
            ids = [_request(own_gateway) for _ in range(20)]
            server.kill()
            server.wait()
            ids += [_request(own_gateway) for _ in range(20)]
            server = subprocess.Popen([*command, "--appendfsync", "always"], stdout=subprocess.DEVNULL)
            eventually(lambda: _pings(client))
            ids += [_request(own_gateway) for _ in range(20)]
            eventually(lambda: ids[-1] in {event.request_id for event in plane.events()})
            events = plane.events()
            assert sorted(event.request_id for event in plane.events()) == sorted(ids)
            assert len({event.event_id for event in events}) == 60
    finally:
        own_gateway.stop()
        stop(server)


def _request(gateway: GatewayProcess) -> str:
    answer = post(gateway, {"model": "bot", "messages": ask(tokens=1)})
    assert answer.status_code == 200
    return str(answer.headers["x-request-id"])


def _pings(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False


def test_an_unreachable_copy_is_followed_by_the_next(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    for urls, status in (((dead,), 503), ((dead, upstream), 200)):
        control_plane.replace(gateway, route_table(*urls))
        for _ in range(4):
            answer = post(gateway, {"model": "base", "messages": ask(tokens=1)})
            assert answer.status_code == status
            if status == 503:
                assert answer.headers["retry-after"]
                assert answer.json()["error"]["code"] == "upstream_unreachable"


def test_no_new_work_without_room_for_its_usage(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(route_table(upstream))
    own_gateway.wal_dir.parent.mkdir(exist_ok=True)
    own_gateway.wal_dir.write_text("a file where the folder should be")
    own_gateway.start_refused()
    assert "cannot start" in own_gateway.log.read_text()

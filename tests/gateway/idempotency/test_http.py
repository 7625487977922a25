"""Idempotency-Key over HTTP: the answer comes again, the bill does not."""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis

from demo.valkey import server_command
from gateway.idempotency.store import KEEP_SECONDS, LEASE_SECONDS
from tests.conftest import free_port, stop
from tests.gateway.conftest import ACME, UMBRELLA, ControlPlane, GatewayProcess, route_table
from tests.gateway.test_app import ask
from tests.waiting import eventually

CHAT = "/v1/chat/completions"
PREFIX = b"graftwork:idempotency:"


def post(gateway: GatewayProcess, key: str, *, bearer: str = ACME, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {bearer}", "idempotency-key": key}
    body = {"model": "base", "messages": ask(tokens=3), **body}
    return httpx.post(gateway.url + CHAT, json=body, headers=headers, timeout=30)


def entries(control_plane: ControlPlane) -> list[bytes]:
    found: Any = control_plane.client.keys(PREFIX + b"*")
    return [name for name in found if b":bytes:" not in name]


def test_an_answer_comes_again_and_is_billed_once(
    gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    first, second = post(gateway, "k"), post(gateway, "k")
    assert first.status_code == second.status_code == 200
    assert first.content == second.content
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert second.headers["x-request-id"] != first.headers["x-request-id"]
    for name in ("content-type", "x-graftwork-served-model"):
        assert second.headers[name] == first.headers[name]
    post(gateway, "another")
    events = control_plane.wait_events(2)
    assert first.headers["x-request-id"] in {event.request_id for event in events}


@pytest.mark.parametrize("delay", [0, 0.002])
def test_a_stream_comes_again_as_a_stream(
    gateway: GatewayProcess, control_plane: ControlPlane, delay: float
) -> None:
    body: dict[str, Any] = {"messages": ask(tokens=30, delay=delay), "stream": True}
    first, second = post(gateway, "k", **body), post(gateway, "k", **body)
    assert first.content == second.content
    assert first.content.endswith(b"data: [DONE]\n\n")
    assert second.headers["content-type"] == first.headers["content-type"]
    assert second.headers["idempotent-replayed"] == "true"
    assert len(control_plane.wait_events(1)) == 1


def test_the_official_client_gets_the_same_answer(
    gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key=ACME, max_retries=0) as api:
        for _ in range(2):
            chunks = list(
                api.chat.completions.create(
                    model="bot", messages=ask(tokens=5), stream=True, extra_headers={"Idempotency-Key": "o"}
                )
            )
            assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 4 + ["length"]
    assert len(control_plane.wait_events(1)) == 1


def test_another_body_and_a_request_under_way_are_conflicts(
    gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(post, gateway, "k", messages=ask(tokens=4, delay=0.3))
        eventually(lambda: entries(control_plane))
        busy = post(gateway, "k", messages=ask(tokens=4, delay=0.3))
        other = post(gateway, "k", messages=ask(tokens=5))
        assert slow.result().status_code == 200
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "idempotency_in_progress")
    assert busy.headers["retry-after"] == "1"
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert other.headers["x-should-retry"] == "false"
    assert post(gateway, "k", messages=ask(tokens=4, delay=0.3)).headers["idempotent-replayed"] == "true"
    assert len(control_plane.wait_events(1)) == 1


def test_of_many_at_once_one_is_answered_by_a_backend(
    gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    barrier = threading.Barrier(8)

    def send(_: int) -> httpx.Response:
        barrier.wait()
        return post(gateway, "race", messages=ask(tokens=5, delay=0.02))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert sum("idempotent-replayed" not in a.headers for a in answers if a.status_code == 200) == 1
    assert len(control_plane.wait_events(1)) == 1


def test_keys_belong_to_their_caller_and_endpoint(
    gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    assert post(gateway, "k").status_code == 200
    headers = {"authorization": f"Bearer {ACME}", "idempotency-key": "k"}
    elsewhere = {"model": "base", "prompt": "x"}
    for other in (
        post(gateway, "k", bearer=UMBRELLA),
        httpx.post(gateway.url + "/v1/completions", json=elsewhere, headers=headers),
    ):
        assert other.status_code == 200
        assert "idempotent-replayed" not in other.headers
    assert post(gateway, "k", bearer="gw_k1_wrong").status_code == 401
    assert len(control_plane.wait_events(3)) == 3


@pytest.mark.parametrize(
    "plan", [{"fail": 400}, {"fail": "event", "tokens": 8}, {"fail": "cut", "tokens": 8}]
)
def test_an_answer_that_failed_is_not_kept(
    gateway: GatewayProcess, control_plane: ControlPlane, plan: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"messages": ask(delay=0.001, **plan), "stream": plan["fail"] != 400}
    for _ in range(2):
        assert "idempotent-replayed" not in post(gateway, "k", **body).headers
        assert entries(control_plane) == []


def test_a_hang_up_frees_the_key(gateway: GatewayProcess, control_plane: ControlPlane) -> None:
    body = {"model": "base", "stream": True, "messages": ask(tokens=200, delay=0.01)}
    headers = {"authorization": f"Bearer {ACME}", "idempotency-key": "k"}
    url = gateway.url + CHAT
    with httpx.Client() as api, api.stream("POST", url, json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        next(lines)
        [name] = entries(control_plane)
        assert 0 < int(control_plane.client.ttl(name)) <= LEASE_SECONDS
    eventually(lambda: entries(control_plane) == [])
    [event] = control_plane.wait_events(1)
    assert event.status == "cancelled"


def test_redis_holds_nothing_readable_and_for_a_day(
    gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    post(gateway, "my-own-key")
    [name] = entries(control_plane)
    held: Any = control_plane.client.hgetall(name)
    assert set(held) == {b"print", b"state", b"answer"}
    for text in (b"tok0", b"my-own-key", b"choices", b"base"):
        assert text not in name + b"".join(held.values())
    assert KEEP_SECONDS - 10 < int(control_plane.client.ttl(name)) <= KEEP_SECONDS
    *kept, last = held[b"answer"]
    control_plane.client.hset(name, "answer", bytes([*kept, last ^ 1]))
    spoilt = post(gateway, "my-own-key")
    assert (spoilt.status_code, spoilt.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert len(control_plane.wait_events(1)) == 1


def test_an_answer_too_large_to_keep_is_not_made_twice(
    gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    body: dict[str, Any] = {"messages": ask(tokens=40_000), "stream": True}
    assert len(post(gateway, "k", **body).content) > 4 << 20
    again = post(gateway, "k", **body)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert "too large" in again.json()["error"]["message"]
    assert len(control_plane.wait_events(1)) == 1


@pytest.mark.parametrize("key", ["", "a" * 256, "a b", "tab\tx"])
def test_a_malformed_key_is_refused(gateway: GatewayProcess, key: str) -> None:
    answer = post(gateway, key)
    # An empty header is none.
    assert answer.status_code == (400 if key else 200)


@pytest.mark.costly("starts a gateway and a Valkey of its own")
def test_without_redis_it_is_refused_and_others_are_served(tmp_path: Path, upstream: str) -> None:
    """Without Redis an earlier answer cannot be found, and billing a request twice would be worse."""
    port = free_port()
    with (tmp_path / "valkey.log").open("wb") as log:
        server = subprocess.Popen(server_command(port=port, folder=tmp_path), stdout=log, stderr=log)
    gateway = GatewayProcess(f"redis://127.0.0.1:{port}/0", tmp_path / "wal", tmp_path / "log")
    try:
        client = redis.Redis(port=port)
        eventually(lambda: _answers(client))
        ControlPlane(client).publish(route_table(upstream))
        gateway.start()
        assert post(gateway, "k").status_code == 200
        stop(server)
        answer = post(gateway, "k")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "idempotency_unavailable")
        assert answer.headers["retry-after"] == "2"
        headers = {"authorization": f"Bearer {ACME}"}
        body = {"model": "base", "messages": ask(tokens=3)}
        assert httpx.post(gateway.url + CHAT, json=body, headers=headers).status_code == 200
    finally:
        gateway.stop()
        stop(server)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False

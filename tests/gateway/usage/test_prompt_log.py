"""The prompt log of tenants that opted in: sent and answered text, sealed; no other tenant's."""

from __future__ import annotations

import asyncio
import base64
import os
from dataclasses import replace
from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from contracts.prompt_log import PROMPT_STREAM
from contracts.route_table import RouteTable
from controlplane.errors import UnsealError
from controlplane.metering.prompt_log.opening import Opened, key_pair, opened
from gateway.usage import prompt_log
from gateway.usage.prompt_log import PromptLog, Record, seal
from tests.gateway.conftest import UMBRELLA, ControlPlane, GatewayProcess, route_table
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")

PRIVATE, PUBLIC = key_pair()


def keeping(upstream: str) -> RouteTable:
    """Routes that say that acme keeps prompts, and umbrella does not."""
    table = route_table(upstream)
    acme = replace(table.tenants["acme"], prompt_key=PUBLIC)
    return replace(table, tenants={**table.tenants, "acme": acme})


def entries(control_plane: ControlPlane) -> list[dict[bytes, bytes]]:
    found: Any = control_plane.client.xrange(PROMPT_STREAM)
    return [fields for _id, fields in found]


def read(fields: dict[bytes, bytes]) -> Opened:
    request_id = fields[b"request"].decode()
    return opened(fields[b"sealed"], private_key=PRIVATE, tenant="acme", request_id=request_id)


def test_what_was_sent_and_answered_is_kept_of_who_opted_in_alone(
    pooled_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.replace(pooled_gateway, keeping(upstream))
    whole = post(pooled_gateway, {"model": "bot", "messages": ask(tokens=3)})
    stream = post(pooled_gateway, {"model": "bot", "stream": True, "messages": ask(tokens=4)})
    refused = post(pooled_gateway, {"model": "none-such", "messages": ask(tokens=1)})
    broken = post(pooled_gateway, {"model": "bot", "messages": ask(fail=500)})
    post(pooled_gateway, {"model": "hive", "messages": ask(tokens=5)}, UMBRELLA)
    assert (whole.status_code, stream.status_code, refused.status_code) == (200, 200, 404)
    eventually(lambda: len(entries(control_plane)) >= 3)
    control_plane.wait_events(4)
    kept = {fields[b"request"].decode(): fields for fields in entries(control_plane)}
    assert set(kept) == {answer.headers["x-request-id"] for answer in (whole, stream, broken)}
    assert {fields[b"tenant"] for fields in kept.values()} == {b"acme"}
    told = read(kept[whole.headers["x-request-id"]])
    assert (told.path, told.cut) == ("/v1/chat/completions", False)
    assert told.turns == [("user", '{"tokens": 3}')]
    assert told.answer == whole.text
    assert told.answer_text == "tok0 tok1 tok2 "
    streamed = read(kept[stream.headers["x-request-id"]])
    assert streamed.answer == stream.text
    assert streamed.answer_text.strip() == "tok0 tok1 tok2 tok3"
    assert read(kept[broken.headers["x-request-id"]]).answer == "", "what failed is kept without an answer"
    prompts = {"prompt": ['{"tokens": 1}'] * 2, "adapters": ["bot", "base"]}
    call = post(pooled_gateway, {"model": "base", **prompts}, path="completions")
    eventually(lambda: len(entries(control_plane)) >= 4)
    stored = read(entries(control_plane)[-1])
    assert stored.answer == call.text, "a call is stored once, under its own id"
    assert stored.answer_text == "tok0 \n\ntok0 "
    for fields in kept.values():
        assert b"tok0" not in fields[b"sealed"]
        assert b"tokens" not in fields[b"sealed"]


def test_from_the_change_on_nothing_more_is_kept(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(keeping(upstream))
    own_gateway.start()
    post(own_gateway, {"model": "bot", "messages": ask(tokens=1)})
    eventually(lambda: len(entries(control_plane)) == 1)
    control_plane.change(2, "tenants/acme", route_table(upstream).tenants["acme"])
    own_gateway.wait_version(2)
    assert post(own_gateway, {"model": "bot", "messages": ask(tokens=1)}).status_code == 200
    own_gateway.stop()
    assert len(entries(control_plane)) == 1


def test_a_stop_ships_what_waits(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    control_plane.publish(keeping(upstream))
    own_gateway.start()
    for _ in range(3):
        post(own_gateway, {"model": "bot", "messages": ask(tokens=1)})
    own_gateway.stop()
    assert len(entries(control_plane)) == 3


def a_record(request: bytes = b"{}", *, key: str = PUBLIC) -> Record:
    return PromptLog(None).begin(key, "acme", "r1", "/v1/completions", request)  # type: ignore[arg-type]


def test_a_record_opens_for_its_tenant_and_request_alone() -> None:
    sealed = seal(a_record(b'{"prompt": "hush"}'))
    found = opened(sealed, private_key=PRIVATE, tenant="acme", request_id="r1")
    assert found.turns == [("user", "hush")]
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for text, key, tenant, request_id in (
        (sealed, PRIVATE, "globex", "r1"),
        (sealed, PRIVATE, "acme", "r2"),
        (sealed, key_pair()[0], "acme", "r1"),
        (changed, PRIVATE, "acme", "r1"),
        (b"", PRIVATE, "acme", "r1"),
    ):
        with pytest.raises(UnsealError):
            opened(text, private_key=key, tenant=tenant, request_id=request_id)
    assert seal(a_record(b'{"prompt": "hush"}')) != sealed


def test_long_prompts_and_answers_are_cut_and_say_so() -> None:
    async def work() -> Record:
        record = a_record(b"x" * (prompt_log.MOST_BYTES - 1))
        assert not record.cut

        async def send(message: Any) -> None:
            sent.append(message["body"])

        through = record.through(send)
        for _ in range(3):
            await through({"type": "http.response.body", "body": b"y" * 100_000})
        return record

    sent: list[bytes] = []
    record = asyncio.run(work())
    assert sum(map(len, sent)) == 300_000, "the client gets all of it"
    assert record.size == prompt_log.MOST_BYTES
    assert record.cut
    assert a_record(b"x" * (prompt_log.MOST_BYTES + 1)).cut
    whole = opened(seal(record), private_key=PRIVATE, tenant="acme", request_id="r1")
    assert len(whole.answer) == prompt_log.MOST_BYTES


def test_memory_is_bounded_while_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records over the limit are dropped and counted; an invalid key does not block other records."""
    monkeypatch.setattr(prompt_log, "_QUEUE_BYTES", 100)

    async def work() -> PromptLog:
        async with Redis(port=1, socket_connect_timeout=0.2) as away:
            log = PromptLog(away)
            for _ in range(5):
                log.end(a_record(b"x" * 40))
            with pytest.raises(redis.exceptions.ConnectionError):
                await log.ship()
            return log

    log = asyncio.run(work())
    assert log.num_dropped == 3
    assert prompt_log._seal_all([a_record(key="bad"), a_record(key=base64.b64encode(b"x").decode())]) == [
        None,
        None,
    ]


def test_redis_keeps_its_memory_for_usage(
    control_plane: ControlPlane,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While no consumer reads the prompt stream, it grows only to its bound."""
    monkeypatch.setattr(prompt_log, "_STREAM_BYTES", 50_000)
    monkeypatch.setattr(prompt_log, "_BATCH", 1)

    async def work() -> None:
        async with Redis.from_url(redis_url) as client:
            log = PromptLog(client)
            for _ in range(20):
                log.end(a_record(os.urandom(10_000)))
            await log.ship()

    asyncio.run(work())
    # Random bytes that are no text become three bytes each: a record is some 20 kB.
    assert 1 <= len(entries(control_plane)) < 10
    assert "prompts dropped" in caplog.text

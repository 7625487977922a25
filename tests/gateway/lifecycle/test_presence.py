"""A gateway's presence record in Redis: written while it serves, removed at a stop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis.asyncio

from contracts.presence import GatewayStatus
from contracts.redis_names import GATEWAYS
from gateway.lifecycle import presence
from gateway.lifecycle.presence import Presence
from tests.gateway.conftest import ControlPlane, GatewayProcess, route_table
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")

WAIT = 60.0


def words(control_plane: ControlPlane) -> list[GatewayStatus]:
    told = cast(Mapping[bytes, bytes], control_plane.client.hgetall(GATEWAYS))
    return [GatewayStatus.from_json(text) for text in told.values()]


def test_a_gateway_says_that_it_is_there_until_it_is_stopped(
    own_gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    control_plane.client.delete(GATEWAYS)
    control_plane.publish(route_table("http://127.0.0.1:1"))
    own_gateway.start()

    def ready() -> Any:
        return [word for word in words(control_plane) if word.ready and word.routes_version == 1]

    (word,) = eventually(ready, seconds=WAIT)
    assert (word.in_flight, word.held, word.reasons) == (0, 0, ())
    assert 0 < word.disk_free <= word.disk_total
    assert word.started_at <= word.at + 60
    own_gateway.stop()
    assert words(control_plane) == [], "one that was stopped is not missed"


def test_a_killed_gateways_word_stays_and_its_successor_replaces_it(
    own_gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    control_plane.client.delete(GATEWAYS)
    control_plane.publish(route_table("http://127.0.0.1:1"))
    own_gateway.start()
    (first,) = eventually(lambda: words(control_plane), seconds=WAIT)
    own_gateway.kill()
    assert [word.pid for word in words(control_plane)] == [first.pid]
    own_gateway.start()
    eventually(lambda: [word for word in words(control_plane) if word.pid != first.pid], seconds=WAIT)
    assert len(words(control_plane)) == 1, "by log slot: whoever took it over speaks in its place"


def alone(client: redis.asyncio.Redis, folder: Path, slot: str) -> Presence:
    """One of a gateway that does nothing else."""
    state = SimpleNamespace(
        wal=SimpleNamespace(slot=SimpleNamespace(id=slot), folder=folder),
        feed=SimpleNamespace(version=1, age=0.5),
        room=SimpleNamespace(held=0),
        in_flight=0,
        backlog=0,
    )
    health = SimpleNamespace(reasons=list)
    return Presence(client, "gw", cast(Any, state), cast(Any, health))


def test_whatever_fails_in_saying_it_does_not_end_it(
    redis_url: str, control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a task is an error of the whole gateway, for which it is restarted."""
    monkeypatch.setattr(presence, "SAY_SECONDS", 0.01)
    control_plane.client.delete(GATEWAYS)

    async def scenario() -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            one = alone(client, tmp_path, "one")
            cast(Any, one)._state.feed.age = "none yet"
            saying = asyncio.create_task(one.run())
            await asyncio.wait({saying}, timeout=0.2)
            assert not saying.done()
            cast(Any, one)._state.feed.age = 0.5
            async with asyncio.timeout(WAIT):
                while not words(control_plane):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            while not saying.done():
                # As the gateway does: one that meets the end of a wait inside the Redis client is lost.
                saying.cancel()
                await asyncio.wait({saying}, timeout=0.5)

    asyncio.run(scenario())


def test_words_older_than_a_day_are_taken_back(
    redis_url: str, control_plane: ControlPlane, tmp_path: Path
) -> None:
    control_plane.client.delete(GATEWAYS)

    async def scenario() -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            for slot in ("today", "yesterday"):
                await alone(client, tmp_path, slot)._say()
            (word, _) = words(control_plane)
            old = dataclasses.replace(word, at=word.at - 86_500)
            control_plane.client.hset(GATEWAYS, "yesterday", old.to_json())
            control_plane.client.hset(GATEWAYS, "other release", "{}")
            await alone(client, tmp_path, "me")._say()

    asyncio.run(scenario())
    assert set(cast(Any, control_plane.client.hkeys(GATEWAYS))) == {b"today", b"me", b"other release"}
    control_plane.client.delete(GATEWAYS)

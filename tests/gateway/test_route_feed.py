"""The route feed over a real Valkey server: deltas, gaps, an old copy, and silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.errors import RoutesUnavailable
from gateway.route_feed import RouteFeed
from gateway.wire import ROUTES_DELTAS, ROUTES_VERSION
from tests.gateway.conftest import ControlPlane, route_table


@asynccontextmanager
async def following(
    url: str, *, stale: float = 300, reset: float = 30, kind: type[Redis] = Redis
) -> AsyncIterator[RouteFeed]:
    async with kind.from_url(url) as client:
        feed = RouteFeed(client, stale_seconds=stale, reset_seconds=reset)
        task = asyncio.create_task(feed.run())
        try:
            yield feed
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110 - what is waited for has no event to wait on
            await asyncio.sleep(0.02)


def version(feed: RouteFeed) -> int:
    try:
        return feed.current().version
    except RoutesUnavailable:
        return 0


def test_deltas_and_a_gap(redis_url: str, control_plane: ControlPlane) -> None:
    async def work() -> None:
        async with following(redis_url) as feed:
            with pytest.raises(RoutesUnavailable):
                feed.current()
            control_plane.publish(route_table("http://a"))
            await until(lambda: version(feed) == 1)
            control_plane.change(2, "keys/k1", None)
            await until(lambda: version(feed) == 2)
            assert set(feed.current().keys) == {"k2"}
            # Version 3 never came as a delta: the snapshot has it.
            control_plane.publish(replace(route_table("http://b"), version=4))
            control_plane.change(4, "keys/k2", None)
            await until(lambda: version(feed) == 4)
            assert set(feed.current().keys) == {"k1", "k2"}

    asyncio.run(work())


def test_an_old_copy_is_left_alone_until_it_has_stood(redis_url: str, control_plane: ControlPlane) -> None:
    async def work() -> None:
        async with following(redis_url, reset=2) as feed:
            control_plane.publish(replace(route_table("http://a"), version=9))
            await until(lambda: version(feed) == 9)
            control_plane.publish(replace(route_table("http://old"), version=3))
            started = asyncio.get_running_loop().time()
            await until(lambda: version(feed) == 3)
            assert asyncio.get_running_loop().time() - started > 1.9

    asyncio.run(work())


def test_a_short_visit_of_an_old_copy_changes_nothing(redis_url: str, control_plane: ControlPlane) -> None:
    async def work() -> None:
        async with following(redis_url, reset=30) as feed:
            control_plane.publish(replace(route_table("http://a"), version=9))
            await until(lambda: version(feed) == 9)
            control_plane.publish(replace(route_table("http://old"), version=3))
            await asyncio.sleep(2)
            assert version(feed) == 9
            control_plane.publish(replace(route_table("http://new"), version=10))
            await until(lambda: version(feed) == 10)

    asyncio.run(work())


def test_a_publish_between_two_reads_brings_no_old_snapshot(
    redis_url: str, control_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    versions = count(2)

    class PublishesBetween(Redis):
        """Redis to which the control plane publishes just before its version is asked."""

        async def get(self, name: Any) -> Any:
            if name == ROUTES_VERSION:
                control_plane.change(next(versions), "keys/k1", None)
            return await super().get(name)

    async def work() -> None:
        # With no time to stand, any lower snapshot that is read would be installed.
        async with following(redis_url, reset=0, kind=PublishesBetween) as feed:
            control_plane.publish(route_table("http://a"))
            await until(lambda: version(feed) >= 4)
            assert set(feed.current().keys) == {"k2"}

    caplog.set_level("INFO", "gateway.route_feed")
    asyncio.run(work())
    assert caplog.messages.count("routes: snapshot of version 1") == 1


def test_two_short_visits_of_an_old_copy_do_not_add_up(redis_url: str, control_plane: ControlPlane) -> None:
    async def work() -> None:
        async with following(redis_url, reset=2) as feed:
            control_plane.publish(route_table("http://a"))
            await until(lambda: version(feed) == 1)
            control_plane.change(2, "keys/k1", None)
            await until(lambda: version(feed) == 2)
            # Without the delta, an old snapshot once installed would stay.
            control_plane.client.delete(ROUTES_DELTAS)
            for _ in range(2):
                control_plane.client.set(ROUTES_VERSION, 1)
                await asyncio.sleep(1.3)
                assert version(feed) == 2
                control_plane.client.set(ROUTES_VERSION, 2)
                await asyncio.sleep(1.3)

    asyncio.run(work())

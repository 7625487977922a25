"""The route feed over a real Valkey server: deltas, gaps, an old copy, and silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from redis.asyncio import Redis

from contracts.redis_names import ROUTES_DELTAS, ROUTES_SEEN, ROUTES_SNAPSHOT, ROUTES_VERSION
from contracts.route_table import RouteChange, RouteTable, TenantRoute
from gateway.errors import RoutesUnavailable
from gateway.routing.route_feed import RouteFeed
from tests.gateway.conftest import ControlPlane, route_table


@asynccontextmanager
async def following(url: str, *, stale: float = 300, kind: type[Redis] = Redis) -> AsyncIterator[RouteFeed]:
    async with kind.from_url(url) as client:
        feed = RouteFeed(client, stale_seconds=stale)
        task = asyncio.create_task(feed.run())
        try:
            yield feed
        finally:
            # A cancellation that meets a timeout inside the Redis client comes out as the timeout.
            while not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=0.5)


class CountingRedis(Redis):
    """Counts the feed's requests, so that a test knows when the feed has polled."""

    gets = ranges = 0

    async def get(self, *arguments: Any, **options: Any) -> Any:
        type(self).gets += 1
        return await super().get(*arguments, **options)

    async def getrange(self, *arguments: Any, **options: Any) -> Any:
        type(self).ranges += 1
        return await super().getrange(*arguments, **options)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
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


def test_a_table_never_goes_back(redis_url: str, control_plane: ControlPlane) -> None:
    """A restored, older Redis is refused for good; the publisher learns the version in force."""

    async def work() -> None:
        async with following(redis_url, stale=3) as feed:
            control_plane.publish(replace(route_table("http://a"), version=9))
            await until(lambda: version(feed) == 9)
            control_plane.publish(replace(route_table("http://old"), version=3))
            await until(lambda: control_plane.client.zscore(ROUTES_SEEN, "version") == 9)
            assert version(feed) == 9
            # The old copy is no contact: the table ages to its end.
            await until(lambda: version(feed) == 0)
            with pytest.raises(RoutesUnavailable, match="older version 3; keeping version 9"):
                feed.current()
            control_plane.publish(replace(route_table("http://new"), version=11))
            await until(lambda: version(feed) == 11)

    asyncio.run(work())


def test_an_emptied_redis_is_no_contact(redis_url: str, control_plane: ControlPlane) -> None:
    async def work() -> None:
        async with following(redis_url, stale=2) as feed:
            control_plane.publish(route_table("http://a"))
            await until(lambda: version(feed) == 1)
            control_plane.client.flushdb()
            await until(lambda: version(feed) == 0)

    asyncio.run(work())


def test_a_quiet_control_plane_is_contact(redis_url: str, control_plane: ControlPlane) -> None:
    async def work() -> None:
        async with following(redis_url) as feed:
            control_plane.publish(route_table("http://a"))
            await until(lambda: version(feed) == 1)
            for _ in range(2):
                await until(lambda: feed.age > 0.5)
                await until(lambda: feed.age < 0.5)
            assert version(feed) == 1

    asyncio.run(work())


def test_duplicates_are_passed_over_and_disorder_is_a_gap(
    redis_url: str, control_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with following(redis_url) as feed:
            control_plane.publish(route_table("http://a"))
            await until(lambda: version(feed) == 1)
            control_plane.change(2, "keys/k1", None)
            # Delivered once more, with what another entry of that version would do.
            control_plane.change(2, "keys/k2", None)
            control_plane.change(3, "tenants/late", TenantRoute("Late", "00"))
            await until(lambda: version(feed) == 3)
            assert set(feed.current().keys) == {"k2"}
            control_plane.publish(replace(route_table("http://b"), version=5))
            control_plane.change(5, "tenants/five", None)
            control_plane.change(4, "keys/k2", None)
            await until(lambda: version(feed) == 5)
            # Read after the delta of version 4, which is passed over.
            control_plane.change(6, "tenants/six", None)
            await until(lambda: version(feed) == 6)
            assert set(feed.current().keys) == {"k1", "k2"}

    caplog.set_level("INFO", "gateway.routing.route_feed")
    asyncio.run(work())
    assert "routes: route change 5 does not follow version 3; reading the snapshot" in caplog.messages


def test_a_torn_snapshot_is_not_taken(redis_url: str, control_plane: ControlPlane) -> None:
    async def work() -> None:
        async with following(redis_url, kind=CountingRedis) as feed:
            whole = route_table("http://a").snapshot()
            newer = replace(route_table("http://a"), version=2).snapshot()
            for torn in (whole[:-30], whole[: len(whole) // 2], whole[:-20] + newer[-20:], "", "nonsense"):
                control_plane.client.set(ROUTES_SNAPSHOT, torn)
                control_plane.client.set(ROUTES_VERSION, 1)
                # At most three pieces are read of one snapshot.
                ranges = CountingRedis.ranges
                await until(lambda ranges=ranges: CountingRedis.ranges > ranges + 6)  # type: ignore[misc]
                assert version(feed) == 0
            control_plane.publish(route_table("http://a"))
            await until(lambda: version(feed) == 1)
            assert feed.current() == route_table("http://a")

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
        async with following(redis_url, kind=PublishesBetween) as feed:
            control_plane.publish(route_table("http://a"))
            await until(lambda: version(feed) >= 4)
            assert set(feed.current().keys) == {"k2"}

    caplog.set_level("INFO", "gateway.routing.route_feed")
    asyncio.run(work())
    assert caplog.messages.count("routes: snapshot of version 1") == 1


LARGE = 100_000


@pytest.fixture(scope="module")
def large_table() -> RouteTable:
    """One tenant has most of the adapters: its map is the largest that one delta makes a copy of."""
    table = route_table("http://a")
    bot = table.adapters["acme"]["bot"]
    adapters = {f"bot-{number}": replace(bot, default=number % 2 + 1) for number in range(LARGE)}
    return replace(table, adapters={**table.adapters, "acme": adapters})


@contextmanager
def callback_times() -> Iterator[list[float]]:
    """CPU seconds of every callback that the event loop runs: none else can run meanwhile."""
    times: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        run(handle)
        times.append(time.thread_time() - started)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed)
        yield times


@pytest.mark.slow
def test_large_tables_and_bursts_hold_up_no_request(
    redis_url: str, control_plane: ControlPlane, large_table: RouteTable
) -> None:
    """The longest that a request waits behind the feed: 100,000 adapters at once, then a burst of deltas,
    then the whole table again after a gap."""
    longest: dict[str, float] = {}
    bot = large_table.adapters["acme"]["bot-1"]

    async def work() -> None:
        async with following(redis_url) as feed:
            with callback_times() as times:
                await until(lambda: version(feed) == 1)
            longest["snapshot"] = max(times)
            assert feed.current() == large_table
            pipeline = control_plane.client.pipeline(transaction=False)
            for number in range(2, 1002):
                change = RouteChange(number, f"adapters/acme/new-{number}", bot)
                pipeline.xadd(ROUTES_DELTAS, {"version": number, "change": change.to_json()})
            pipeline.set(ROUTES_VERSION, 1001)
            pipeline.execute()
            with callback_times() as times:
                await until(lambda: version(feed) == 1001)
            longest["burst"] = max(times)
            before = feed.current()
            control_plane.publish(replace(before, version=2001))
            with callback_times() as times:
                await until(lambda: version(feed) == 2001)
            longest["again"] = max(times)
            kept = feed.current().adapters["acme"]["bot-7"]
            assert kept is before.adapters["acme"]["bot-7"], "what has not changed is not made anew"

    snapshot = large_table.snapshot()
    started = time.thread_time()
    RouteTable.from_snapshot(snapshot)
    at_once = time.thread_time() - started
    control_plane.publish(large_table)
    asyncio.run(work())
    print({name: f"{seconds * 1000:.1f} ms" for name, seconds in longest.items()}, f"{at_once * 1000:.0f} ms")
    assert max(longest.values()) < at_once / 50, "the table is read in pieces"


def test_two_short_visits_of_an_old_copy_do_not_add_up(redis_url: str, control_plane: ControlPlane) -> None:
    async def work() -> None:
        async with following(redis_url, kind=CountingRedis) as feed:
            control_plane.publish(route_table("http://a"))
            await until(lambda: version(feed) == 1)
            control_plane.change(2, "keys/k1", None)
            await until(lambda: version(feed) == 2)
            # Without the delta, an old snapshot once installed would stay.
            control_plane.client.delete(ROUTES_DELTAS)
            for offered in (1, 2, 1, 2):
                control_plane.client.set(ROUTES_VERSION, offered)
                gets = CountingRedis.gets
                await until(lambda gets=gets: CountingRedis.gets > gets + 1)  # type: ignore[misc]
                assert version(feed) == 2

    asyncio.run(work())

"""A process that slept, or whose request waited: what it was granted before does not count any more."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack

import redis

from gateway.admission import Ticket, clock
from gateway.admission.script import GATEWAYS
from gateway.errors import GatewayError, RateLimited
from tests.gateway.admission.conftest import Gate, Valkey, gate
from tests.gateway.admission.test_outage import BUDGET, base, two, until_told

PLACES = {"kind": "concurrency", "amount": 10}
SECONDS = 3.0
REQUESTS = {"kind": "requests", "amount": 1, "seconds": SECONDS}


async def take_for_dead(valkey: Valkey, running: Gate) -> None:
    """Date the last word of a process back, so that the script takes it for dead at the next call."""
    running.drawing.cancel()
    # A call under way would be another word of it.
    await asyncio.wait({running.drawing})
    with redis.Redis.from_url(valkey.url) as client:
        assert client.zadd(GATEWAYS, {running.broker._name: 1}, xx=True, ch=True) == 1
    running.broker.dead_at = clock.now()


async def many(running: Gate, count: int) -> list[Ticket]:
    """Send `count` requests at once; return the tickets of the admitted ones."""
    found = await asyncio.gather(*(running.admit() for _ in range(count)), return_exceptions=True)
    assert all(isinstance(each, Ticket | RateLimited) for each in found)
    return [each for each in found if isinstance(each, Ticket)]


def test_whoever_was_taken_for_dead_has_no_places_left(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [PLACES], queue=0.0)
            for ticket in await many(a, 10):
                ticket.settle()
            assert a.plan.places[0].held > 0
            # As after SIGSTOP: nothing is told to Redis meanwhile.
            await take_for_dead(valkey, a)
            others = await many(b, 10)
            assert len(others) == 10
            assert not a.plan.has(1, 0, clock.now())
            await a.draw()
            assert await many(a, 10) == []

    asyncio.run(scenario())


def test_a_place_given_back_after_a_sleep_is_not_given_on(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [PLACES], queue=2.0)
            held = await many(a, 10)
            waiting = asyncio.create_task(a.admit())
            await asyncio.sleep(0.1)
            await take_for_dead(valkey, a)
            assert len(await many(b, 10)) == 10
            held[0].settle()
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await a.draw()
            try:
                await waiting
            except GatewayError:
                return
            raise AssertionError("an eleventh got a place")

    asyncio.run(scenario())


def test_whoever_was_taken_for_dead_tells_what_it_uses(valkey: Valkey) -> None:
    """It reports without a request for a place: until then the places that it still uses are not counted."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [PLACES], queue=0.0)
            assert len(await many(a, 5)) == 5
            await until_told(valkey, a, 5)
            a.drawing.cancel()
            with redis.Redis.from_url(valkey.url) as client:
                assert client.zrem(GATEWAYS, a.broker._name) == 1
                a.broker.dead_at = clock.now()
                assert len(await many(b, 5)) == 5
                assert not client.hexists(a.plan.places[0].key, a.broker._name)
            await a.draw()
            await until_told(valkey, a, 5)
            # The places that b was granted ahead go back with its next report.
            await until_told(valkey, b, 5)
            while b.plan.places[0].held > 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await many(b, 1) == []

    asyncio.run(scenario())


def test_a_window_counts_from_when_the_last_limit_has_answered(valkey: Valkey) -> None:
    """A budget without a baseline delays a request by seconds; the window is drawn again afterwards."""

    async def scenario() -> None:
        async with gate(valkey.url, "a", [REQUESTS, BUDGET]) as running:
            first = asyncio.create_task(running.admit())
            # Wait longer than a lease of the window lasts: it must be drawn anew.
            await asyncio.sleep(1.0)
            base(valkey, 0)
            ticket = await first
            following = None
            while following is None:
                with contextlib.suppress(RateLimited):
                    following = await asyncio.wait_for(running.admit(), 60)
                await asyncio.sleep(0.02)
            assert following.at - ticket.at >= SECONDS

    asyncio.run(scenario())

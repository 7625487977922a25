"""Spare places: no request waits for Redis while most of a limit is free, and no process starves."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack

import pytest
import redis

from contracts.limits import Limit
from gateway.admission import Broker, clock, line
from gateway.admission.concurrency import ConcurrencyAccount
from tests.gateway.admission.conftest import Gate, Valkey, gate, until
from tests.gateway.admission.test_outage import two, until_told

LIMIT = 40
PLACES = {"kind": "concurrency", "amount": LIMIT}


def concurrency_account(running: Gate) -> ConcurrencyAccount:
    [account] = running.plan.places
    return account


@pytest.mark.costly("hundreds of requests")
def test_requests_one_after_another_never_wait(valkey: Valkey) -> None:
    """The loop runs for three heartbeats, so over reports of held places: each took a round trip once."""

    async def scenario() -> None:
        async with gate(valkey.url, "slot", [PLACES]) as running:
            while concurrency_account(running).held < LIMIT // 8:
                (await running.admit()).settle()
                await asyncio.sleep(0.01)
            end = clock.now() + 1.6
            while clock.now() < end:
                plan = running.plan
                assert plan.has(1, 0, clock.now())
                ticket = plan.take(1, 0, clock.now())
                await asyncio.sleep(0)
                ticket.settle()
                await asyncio.sleep(0)

    asyncio.run(scenario())


def test_they_go_back_when_nobody_asks(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [PLACES], queue=0.0)
            held = await a.admit()
            await until(lambda: concurrency_account(a).held > 1)
            await until(lambda: concurrency_account(a).held == 1)
            held.settle()
            # While a call is under way, `held` does not say yet what it draws.
            await until_told(valkey, a, 0)
            # Without a queue each of these requests is refused at once if a place is missing.
            tickets = await asyncio.gather(*(b.admit() for _ in range(LIMIT)))
            assert concurrency_account(b).used == LIMIT
            for ticket in tickets:
                ticket.settle()

    asyncio.run(scenario())


def test_they_go_back_when_the_process_ends(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with gate(valkey.url, "slot", [PLACES]) as running:
            while concurrency_account(running).held < LIMIT // 8:
                (await running.admit()).settle()
                await asyncio.sleep(0.01)
            running.drawing.cancel()
            await asyncio.wait({running.drawing})
            await running.broker.close()
            with redis.Redis.from_url(valkey.url) as client:
                assert client.hgetall(concurrency_account(running).key) == {}

    asyncio.run(scenario())


def test_they_go_back_when_others_need_them(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [PLACES], queue=60.0)
            busy = asyncio.create_task(one_at_a_time(a))
            await until(lambda: concurrency_account(a).held > 1)
            tickets = await asyncio.gather(*(b.admit() for _ in range(LIMIT - 1)))
            assert not busy.done(), "a asks all the while, and keeps the one place that it uses"
            for ticket in tickets:
                ticket.settle()
            busy.cancel()
            await asyncio.wait({busy})

    asyncio.run(scenario())


async def one_at_a_time(running: Gate) -> None:
    while True:
        ticket = await running.admit()
        try:
            await asyncio.sleep(0.01)
        finally:
            ticket.settle()


def account() -> tuple[ConcurrencyAccount, Broker]:
    """Return an account with ten granted places, none in use."""
    broker = Broker(line("redis://127.0.0.1:1/0"), "slot")
    broker.away, broker.gateways, broker.dead_at = False, 1, math.inf
    fresh = ConcurrencyAccount(broker, "tenant:acme", Limit("concurrency", LIMIT))
    fresh.answered([10, 30], 0.0)
    return fresh, broker


def spare_places(account: ConcurrencyAccount) -> int:
    """Return the number of spare places that the next report keeps."""
    keep = account.operation()[3]
    assert isinstance(keep, int)
    return keep


def test_an_answer_read_after_a_sleep_serves_nobody() -> None:
    async def scenario() -> None:
        slept, broker = account()
        slept.forgotten()
        waiting = asyncio.create_task(slept.wait(0, 0.0, 10))
        await asyncio.sleep(0)
        broker.dead_at = clock.now()
        slept.answered([1, 0], 0.0)
        assert (slept.used, slept.held, slept.waiting) == (0, 0, 1)
        broker.dead_at = math.inf
        slept.answered([1, 0], 0.0)
        assert await waiting is None
        assert slept.used == 1

    asyncio.run(scenario())


def test_only_what_redis_granted_is_kept() -> None:
    async def scenario() -> None:
        granted, _ = account()
        assert spare_places(granted) == granted.held == 10
        full, _ = account()
        full.answered([10, 0], 0.0)
        assert spare_places(full) == full.held == 0, "most of the limit is not free"
        cut_off, broker = account()
        broker.away = True
        cut_off.alone()
        cut_off.held = 5  # of its share, which is not Redis'
        assert spare_places(cut_off) == 0
        lost, _ = account()
        lost.forgotten()
        assert spare_places(lost) == 0
        slept, broker = account()
        broker.dead_at = clock.now()
        assert spare_places(slept) == 0

    asyncio.run(scenario())

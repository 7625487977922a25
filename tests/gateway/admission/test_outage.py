"""Each kind of limit without Redis: a share, a share, a share, and for money only what is held."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
import redis

from contracts.limits import budget_key, budget_period
from gateway.admission import Ticket
from gateway.admission.script import QUARANTINE_MS
from gateway.errors import LimitsUnavailable, QuotaExceeded, RateLimited
from tests.gateway.admission.conftest import Gate, Valkey, gate, until

pytestmark = pytest.mark.costly("starts Valkey and gateways of its own")

REQUESTS = {"kind": "requests", "amount": 100}
TOKENS = {"kind": "tokens", "amount": 1000}
PLACES = {"kind": "concurrency", "amount": 9}
BUDGET = {"kind": "budget", "amount": 1_000_000, "period": "day", "alert": 800_000}


async def two(
    stack: AsyncExitStack, valkey: Valkey, limits: list[dict[str, Any]], *, queue: float = 0.3
) -> tuple[Gate, Gate]:
    """Two processes that know of each other."""
    gates = [
        await stack.enter_async_context(gate(valkey.url, slot, limits, queue=queue)) for slot in ("a", "b")
    ]
    for one in gates:
        await one.until_gateways(2)
    return gates[0], gates[1]


async def until_told(valkey: Valkey, running: Gate, places: int) -> None:
    """Waits until Redis counts so many places as this process's."""
    [account] = running.plan.places
    with redis.Redis.from_url(valkey.url) as client:
        await until(lambda: count(client, account.key, running.broker._name) == places)


def count(client: redis.Redis, key: str, field: str) -> int:
    return int(cast(bytes, client.hget(key, field)) or 0)


async def ask_for_ever(running: Gate) -> None:
    """Admit requests until one is refused; raise its error."""
    while True:
        (await running.admit(1)).settle()
        await asyncio.sleep(0.05)


def base(valkey: Valkey, spent: int) -> None:
    """Write the day's budget as the control plane does."""
    name, _ = budget_period("day", dt.datetime.now(dt.UTC))
    with redis.Redis.from_url(valkey.url) as client:
        cut = int(time.time() * 1000) - 30_000
        client.hset(budget_key("tenant:acme", name), mapping={"base": spent, "cut": cut})


def test_requests_keep_to_the_process_share(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [REQUESTS])
            assert await a.admitted(10) == 10
            valkey.stop()
            await a.until(True)
            await b.until(True)
            # 10 of a's 50 are spent already, by its own record.
            assert await a.admitted(200) == 40
            assert await b.admitted(200) == 50
            assert await a.admitted(10) == 0
            valkey.start()
            await a.until(False)
            await b.until(False)
            # Both processes report what they spent without Redis: the window is full.
            with redis.Redis.from_url(valkey.url) as client:
                await until(lambda: count(client, a.plan.requests[0].key, "t") == 100)
            assert await a.admitted(20) + await b.admitted(20) == 0

    asyncio.run(scenario())


def test_tokens_keep_to_the_process_share(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [TOKENS])
            valkey.stop()
            await a.until(True)
            await b.until(True)
            assert await a.admitted(20, 100) == 5
            assert await b.admitted(20, 250) == 2

    asyncio.run(scenario())


def test_places_keep_to_the_process_share(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [PLACES])
            held = [await a.admit() for _ in range(6)]
            valkey.stop()
            await a.until(True)
            await b.until(True)
            with pytest.raises(RateLimited):
                await a.admit()
            tickets = [await b.admit() for _ in range(4)]
            with pytest.raises(RateLimited):
                await b.admit()
            for ticket in held[:3]:
                ticket.settle()
            tickets.append(await a.admit())
            with pytest.raises(RateLimited):
                await a.admit()
            valkey.start()
            await a.until(False)
            await b.until(False)
            await until_told(valkey, a, 4)
            await until_told(valkey, b, 4)
            # a holds 4, b 4: one is left.
            tickets.append(await b.admit())
            with pytest.raises(RateLimited):
                await a.admit()
            for ticket in (*held[3:], *tickets):
                ticket.settle()

    asyncio.run(scenario())


def test_what_was_taken_without_redis_is_told_when_it_is_back(valkey: Valkey) -> None:
    """Even if no request asks for a place, returns one or was refused in the meantime."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [PLACES], queue=0.0)
            valkey.stop()
            await a.until(True)
            await b.until(True)
            held = [await a.admit() for _ in range(4)]
            valkey.start()
            await a.until(False)
            await b.until(False)
            await until_told(valkey, a, 4)
            granted = await asyncio.gather(*(b.admit() for _ in range(9)), return_exceptions=True)
            assert sum(isinstance(each, Ticket) for each in granted) == 9 - len(held)

    asyncio.run(scenario())


def test_budgets_spend_what_is_held_and_then_refuse(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, _ = await two(stack, valkey, [BUDGET])
            with pytest.raises(LimitsUnavailable, match="cannot be determined"):
                await a.admit(1000)
            base(valkey, 0)
            (await a.admit(1000)).settle()
            valkey.stop()
            await a.until(True)
            # The unused part of the first request's reservation is still held.
            (await a.admit(1000)).settle()
            with pytest.raises(LimitsUnavailable):
                await a.admit(500_000)

    asyncio.run(scenario())


def test_a_budget_stops_hard_and_warns_before(valkey: Valkey) -> None:
    async def scenario() -> None:
        base(valkey, 700_000)
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [BUDGET])
            ticket = await a.admit(50_000, 50_000)
            assert a.plan.headers(time.monotonic()) == []
            ticket.count(60_000, 10_000, 60_000)
            ticket.settle()
            # Redis hears of it with the next heartbeat, and b with its next draw.
            async with asyncio.timeout(60):
                while b.plan.headers(time.monotonic()) != [(b"x-graftwork-budget", b"alert")]:
                    (await b.admit(1000)).settle()
                    await asyncio.sleep(0.05)
            with pytest.raises(QuotaExceeded) as refused:
                await b.admit(181_000)
            assert refused.value.code == "insufficient_quota"
            ticket = await b.admit(180_000)
            with pytest.raises(QuotaExceeded):
                await a.admit(1)
            ticket.settle()
            base(valkey, 1_000_000)
            with pytest.raises(QuotaExceeded):
                await asyncio.wait_for(ask_for_ever(a), 60)

    asyncio.run(scenario())


def test_a_server_that_lost_its_data_is_told_what_was_used(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            a, b = await two(stack, valkey, [REQUESTS, PLACES], queue=4.0)
            assert await a.admitted(60) == 60
            held = [await b.admit() for _ in range(8)]
            valkey.stop(lose=True)
            await a.until(True)
            await b.until(True)
            began = time.monotonic()
            valkey.start(old=False)
            await a.until(False)
            await b.until(False)
            # Nothing is granted until everyone has reported; then 32 requests and one place are left.
            ticket = await a.admit()
            assert time.monotonic() - began > QUARANTINE_MS / 1000
            with pytest.raises(RateLimited):
                await b.admit()
            ticket.settle()
            for one in held:
                one.settle()
            assert await a.admitted(40) + await b.admitted(40) <= 31

    asyncio.run(scenario())

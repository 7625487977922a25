"""The round-robin lock: the order of tenants, and cancellations."""

from __future__ import annotations

import asyncio

import pytest

from worker_engine.errors import TooManyRequests
from worker_engine.round_robin import RoundRobinLock


def test_tenants_alternate_and_a_cancelled_one_holds_up_nobody() -> None:
    order: list[str] = []
    lock = RoundRobinLock(3)

    async def one(name: str) -> None:
        async with lock.hold(name[0]):
            order.append(name)
            await asyncio.sleep(0)

    async def run() -> None:
        tasks = {name: asyncio.create_task(one(name)) for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1")}
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await one("a5")
        tasks["b1"].cancel()
        tasks["a3"].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        await one("d1")

    asyncio.run(run())
    assert order == ["a1", "b2", "c1", "a2", "a4", "d1"]


def test_a_lock_that_comes_with_a_cancellation_is_passed_on() -> None:
    lock, order = RoundRobinLock(3), list[str]()

    async def one(name: str) -> None:
        async with lock.hold(name):
            order.append(name)

    async def run() -> None:
        async with lock.hold("first"):
            waiting = [asyncio.create_task(one(name)) for name in ("gone", "next")]
            await asyncio.sleep(0)
        # The lock is given to the first that waits, and it is cancelled before it runs.
        waiting[0].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())
    assert order == ["next"]

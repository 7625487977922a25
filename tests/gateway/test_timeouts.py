"""Waits of one length under one timer: each rings at its time, those that ended never."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from gateway.timeouts import Timeouts

SECONDS = 0.2
LAST = -1


class Timed:
    """What rang, and how long after its beginning."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.timeouts: Timeouts[int] = Timeouts(SECONDS, self._ring)
        self.began: dict[int, float] = {}
        self.took: dict[int, float] = {}
        self.over = asyncio.Event()

    def begin(self, waiter: int) -> None:
        self.began[waiter] = self.loop.time()
        self.timeouts.begin(waiter, self.loop)

    def _ring(self, waiter: int) -> None:
        if waiter == LAST:
            self.over.set()
        else:
            self.took[waiter] = self.loop.time() - self.began[waiter]

    async def all_due(self) -> None:
        """Until all that will ring has."""
        self.begin(LAST)
        await self.over.wait()


def test_each_rings_at_its_time_unless_it_ended() -> None:
    async def work() -> None:
        timed, rng = Timed(), random.Random(1)
        ended: set[int] = set()
        for waiter in range(60):
            timed.begin(waiter)
            await asyncio.sleep(rng.choice([0, 0, 0.01]))
            if rng.random() < 0.5:
                timed.timeouts.end(waiter)
                ended.add(waiter)
        await timed.all_due()
        assert set(timed.took) == set(range(60)) - ended
        assert min(timed.took.values()) > SECONDS - 0.005

    asyncio.run(work())


def test_what_ends_and_begins_again_has_its_whole_time() -> None:
    async def work() -> None:
        timed = Timed()
        for _ in range(5):
            timed.begin(1)
            await asyncio.sleep(SECONDS / 2)
            timed.timeouts.end(1)
        assert timed.took == {}
        timed.begin(1)
        await timed.all_due()
        assert timed.took[1] > SECONDS - 0.005

    asyncio.run(work())


def test_one_that_is_rung_for_may_end_others_that_are_due() -> None:
    async def work() -> list[str]:
        rung: list[str] = []
        over = asyncio.Event()

        def ring(waiter: str) -> None:
            rung.append(waiter)
            timeouts.end("b")
            if waiter == "c":
                over.set()

        timeouts = Timeouts(0.01, ring)
        loop = asyncio.get_running_loop()
        for waiter in "abc":
            timeouts.begin(waiter, loop)
        await over.wait()
        return rung

    assert asyncio.run(work()) == ["a", "c"]


def test_a_thousand_waits_are_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> int:
        loop = asyncio.get_running_loop()
        timers = 0

        def call_later(*_: Any) -> Any:
            nonlocal timers
            timers += 1
            return object()

        monkeypatch.setattr(loop, "call_later", call_later)
        timeouts: Timeouts[int] = Timeouts(60, print)
        for waiter in range(1000):
            timeouts.begin(waiter, loop)
            timeouts.end(waiter)
        return timers

    assert asyncio.run(work()) == 1

"""Waits of one length under one timer: each rings at its time, those that ended never."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from gateway.http.timeouts import Timeouts

SECONDS = 0.25
"""As the steps below a sum of powers of two, so that the loop's times add up exactly."""


class Loop:
    """An event loop's clock and timers; time passes only in `advance`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[..., None], *arguments: Any) -> object:
        heapq.heappush(self._timers, (when, next(self._order), call, arguments))
        return object()

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> object:
        return self.call_at(self.now + seconds, call, *arguments)

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(self._timers)
            call(*arguments)
        self.now = until


class Timed:
    """Records when each timer started, and the delay after which it fired."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.timeouts: Timeouts[int] = Timeouts(SECONDS, self._ring)
        self.began: dict[int, float] = {}
        self.took: dict[int, float] = {}

    def begin(self, waiter: int) -> None:
        self.began[waiter] = self.loop.time()
        self.timeouts.begin(waiter, cast(asyncio.AbstractEventLoop, self.loop))

    def _ring(self, waiter: int) -> None:
        self.took[waiter] = self.loop.time() - self.began[waiter]


def test_each_rings_at_its_time_unless_it_ended() -> None:
    timed, rng = Timed(), random.Random(1)
    waiting: set[int] = set()
    ended: set[int] = set()
    for waiter in range(200):
        timed.begin(waiter)
        waiting.add(waiter)
        timed.loop.advance(rng.choice([0, 0, 1 / 64, 1 / 16, 1 / 2]))
        waiting -= set(timed.took)
        for each in [each for each in sorted(waiting) if rng.random() < 0.1]:
            timed.timeouts.end(each)
            waiting.remove(each)
            ended.add(each)
    timed.loop.advance(SECONDS)
    assert timed.took == dict.fromkeys(set(range(200)) - ended, SECONDS)
    assert len(ended) > 20


def test_what_ends_and_begins_again_has_its_whole_time() -> None:
    timed = Timed()
    for _ in range(5):
        timed.begin(1)
        timed.loop.advance(SECONDS / 2)
        timed.timeouts.end(1)
    assert timed.took == {}
    timed.begin(1)
    timed.loop.advance(SECONDS)
    assert timed.took == {1: SECONDS}


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

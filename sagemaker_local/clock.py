"""The clock of states, alarms and schedules: it runs, stands still, or is advanced."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

log = logging.getLogger(__name__)
Tick = Callable[[], Awaitable[None]]
STEP_SECONDS: Final = 10.0
"""Interval of evaluations; periods of high-resolution alarms are this long."""


class Clock:
    """Seconds since 1970, plus all advances. Use it on the event loop only."""

    def __init__(self, *, running: bool = True) -> None:
        self._base = time.time()
        self._since = time.monotonic()
        self.running = running
        self._moved = asyncio.Event()
        self._ticks: list[Tick] = []
        self._next = self._base + STEP_SECONDS
        self._turn = asyncio.Lock()

    def now(self) -> float:
        return self._base + (time.monotonic() - self._since if self.running else 0.0)

    def run(self, running: bool) -> None:
        """Let the clock run, or stop it."""
        self._base, self._since, self.running = self.now(), time.monotonic(), running
        self._wake()

    async def sleep(self, seconds: float) -> None:
        """Sleep by this clock; returns at once for 0 or less."""
        end = self.now() + seconds
        while (left := end - self.now()) > 0:
            moved = self._moved
            try:
                await asyncio.wait_for(moved.wait(), left if self.running else None)
            except TimeoutError:
                continue

    def every_step(self, tick: Tick) -> None:
        """Await `tick` once a step, including each step that an advance passes."""
        self._ticks.append(tick)

    async def advance(self, seconds: float) -> None:
        """Advance the time step by step, so that periodic work runs as often as it would have."""
        async with self._turn:
            end = self.now() + seconds
            while self._next <= end:
                await self._to(self._next)
                await self._tick()
            await self._to(end)

    async def serve(self) -> None:
        """Run ticks while the clock runs, until cancelled."""
        while True:
            await self.sleep(max(self._next - self.now(), 0.05))
            async with self._turn:
                if self.now() >= self._next:
                    await self._tick()

    async def _to(self, moment: float) -> None:
        self._base += max(moment - self.now(), 0.0)
        self._wake()
        await asyncio.sleep(0)

    async def _tick(self) -> None:
        self._next = max(self._next + STEP_SECONDS, self.now() - STEP_SECONDS)
        for tick in self._ticks:
            try:
                await tick()
            except Exception:
                # The next step tries again; a failed step must not stop the clock.
                log.exception("a step of the clock failed")

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

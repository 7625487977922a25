"""Many waits that may all take equally long, under one timer of the event loop.

One for each costs microseconds of every request, and almost none ever rings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Timeouts(Generic[T]):
    """Calls `ring` with what was begun `seconds` ago and has not ended since. Lives on one event loop."""

    def __init__(self, seconds: float, ring: Callable[[T], None]) -> None:
        self._seconds, self._ring = seconds, ring
        self._due: dict[T, float] = {}
        """By the loop's clock; in the order in which they began, which is that in which they are due."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, waiter: T, loop: asyncio.AbstractEventLoop) -> None:
        """From now on `waiter` waits; not for two things at once. `end` must follow."""
        self._due[waiter] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._check, loop)

    def end(self, waiter: T) -> None:
        """It does not wait any more; nothing happens if it has been rung for."""
        self._due.pop(waiter, None)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        late: list[T] = []
        for waiter, due in self._due.items():
            if due > now:
                self._timer = loop.call_at(due, self._check, loop)
                break
            late.append(waiter)
        for waiter in late:
            # One that was rung for may end others.
            if self._due.pop(waiter, None) is not None:
                self._ring(waiter)

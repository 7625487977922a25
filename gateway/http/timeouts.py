"""Timeouts of equal length for many waits, under one timer of the event loop.

A timer for each would cost microseconds of every request, and almost none ever rings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Timeouts(Generic[T]):
    """Calls `ring` with each waiter that has waited for `seconds`. Use it on one event loop only."""

    def __init__(self, seconds: float, ring: Callable[[T], None]) -> None:
        self._seconds, self._ring = seconds, ring
        self._due: dict[T, float] = {}
        """Deadlines by the loop's clock, in the order of their begin, and so of their time."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, waiter: T, loop: asyncio.AbstractEventLoop) -> None:
        """Start a waiter's timeout, one at a time. `end` must follow."""
        self._due[waiter] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._check, loop)

    def end(self, waiter: T) -> None:
        """End a waiter's timeout; does nothing if it has rung."""
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
            # A waiter's `ring` may end the timeouts of others.
            if self._due.pop(waiter, None) is not None:
                self._ring(waiter)

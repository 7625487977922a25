"""An event loop whose clock stands still while there is work and jumps to the next timer when there is none.

Components that wait by the loop's clock (`loop.time`, `call_later`, `asyncio.sleep`, `asyncio.timeout`) run
through minutes in milliseconds, and no wait is shorter or longer because the machine is busy. Servers and
clients of a test must run in this one loop: a thread or another process would be given no time to answer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

DELIVERY_SECONDS: Final = 0.02
"""Real time that the kernel gets to deliver between two sockets of the process before the clock jumps."""


class _Selector(selectors.DefaultSelector):
    """Reports the seconds that the loop would have slept as passed."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        events = super().select(0)
        if events or timeout <= 0:
            return events
        events = super().select(min(timeout, DELIVERY_SECONDS))
        if not events:
            self.passed += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.passed


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` as `asyncio.run` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)

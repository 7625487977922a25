"""An event loop whose clock jumps to the next timer, so that simulated minutes take seconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs timers without waiting for them. For coroutines without input or output."""

    def __init__(self) -> None:
        self._now = self._blocked = 0.0
        super().__init__(_NoInput(self))

    def time(self) -> float:
        """Return the simulated seconds since the loop was made."""
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def block(self, seconds: float) -> None:
        """Let the function that runs in a thread now take so many seconds."""
        self._blocked += seconds

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run the function at once; its result comes after the seconds that it blocked."""
        done: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            done.set_exception(error)
            return done
        seconds, self._blocked = self._blocked, 0.0
        self.call_later(seconds, _give, done, result)
        return done


def _give(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


class _NoInput(selectors.SelectSelector):
    """A selector that advances the loop's clock instead of waiting."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Advance the clock by `timeout`. Raises RuntimeError if no timer is set."""
        if timeout is None:
            raise RuntimeError("every coroutine of the simulation waits for another")
        self._loop.advance(max(0.0, timeout))
        return []

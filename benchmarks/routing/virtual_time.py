"""An event loop whose clock jumps to the next timer, so that simulated minutes take seconds."""

from __future__ import annotations

import asyncio
import selectors


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs timers without waiting for them. For coroutines without input or output."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_NoInput(self))

    def time(self) -> float:
        """Return the simulated seconds since the loop was made."""
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


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

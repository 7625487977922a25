"""What a stop does to requests under way: they may end within a bound, then they are cut and told so.

The server takes no more connections, closes idle ones and waits for the others, without a bound: until the
application ends by itself. So the bound is kept here, with time to record and ship usage.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from gateway.errors import Stopping

logger = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 20
KILL_SECONDS: Final = 10
"""From the bound until the process is killed: cutting, shipping and closing take less."""
_CUT_SECONDS: Final = 2.0
"""For requests that were cut to record that, and for the server to pass on what they said."""


class Drain:
    """Knows the requests under way.

    Attributes:
        begun: whether the gateway was told to stop.
    """

    def __init__(self, seconds: float = DRAIN_SECONDS) -> None:
        self._seconds = seconds
        self._open: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()
        self._spared: set[asyncio.Task[Any]] = set()
        self._over = asyncio.Event()
        self.begun = False

    def enter(self) -> asyncio.Task[Any]:
        """A request begins on the current task; `leave` must follow. Raises Stopping."""
        if self.begun:
            raise Stopping()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is served by a task")
        self._open.add(task)
        return task

    def leave(self, task: asyncio.Task[Any]) -> None:
        self._open.discard(task)
        self._spared.discard(task)

    def cut(self) -> bool:
        """Whether the cancellation that the current task has caught is this one's: it may go on, briefly."""
        task = asyncio.current_task()
        if task is None or task not in self._cut:
            return False
        self._cut.discard(task)
        task.uncancel()
        return True

    def begin(self) -> None:
        """The gateway was told to stop: new requests are refused, those under way have `seconds`."""
        if not self.begun:
            self.begun = True
            logger.info("stopping: %d requests have %g s to end", len(self._open), self._seconds)
            asyncio.get_running_loop().call_later(self._seconds, self._over.set)

    def spare(self) -> None:
        """The current task's request is recorded as whole: cut now, it would be billed and asked again."""
        if (task := asyncio.current_task()) in self._open and task is not None:
            self._spared.add(task)

    async def wait(self, server: asyncio.Future[Any]) -> bool:
        """Returns when no request is under way; whether the `server` has ended, rather than its time."""
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait({server, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if server.done():
            # Their connections have ended: they only have to tidy up, or do not know yet that nobody listens.
            await self._settle(0.5)
        for task in self._open - self._spared:
            self._cut.add(task)
            task.cancel()
        await self._settle(_CUT_SECONDS)
        await asyncio.wait({server}, timeout=_CUT_SECONDS)
        return server.done()

    async def _settle(self, seconds: float) -> None:
        if self._open:
            await asyncio.wait(set(self._open), timeout=seconds)

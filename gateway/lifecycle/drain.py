"""Drains running requests at a stop: they may finish within a time limit, and are then cut with an error.

The server stops accepting, closes idle connections and waits for the others without a limit, until the
application ends. So the limit is enforced here, and leaves time to record and ship usage.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from gateway.errors import Stopping

logger = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 20
KILL_SECONDS: Final = 10
"""From the time limit until the process is killed: cutting, shipping and closing take less."""
_CUT_SECONDS: Final = 2.0
"""Time for cut requests to record their end, and for the server to send their last bytes."""


class Drain:
    """Tracks the running requests.

    Attributes:
        begun: True once the gateway was asked to stop.
    """

    def __init__(self, seconds: float = DRAIN_SECONDS) -> None:
        self._seconds = seconds
        self._open: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()
        self._protected: set[asyncio.Task[Any]] = set()
        self._over = asyncio.Event()
        self.begun = False

    def register(self) -> asyncio.Task[Any]:
        """Register a request on the current task; `unregister` must follow. Raises Stopping."""
        if self.begun:
            raise Stopping()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is served by a task")
        self._open.add(task)
        return task

    def unregister(self, task: asyncio.Task[Any]) -> None:
        self._open.discard(task)
        self._protected.discard(task)

    def cut(self) -> bool:
        """Return True if the drain cancelled the current task, which may then go on briefly."""
        task = asyncio.current_task()
        if task is None or task not in self._cut:
            return False
        self._cut.discard(task)
        task.uncancel()
        return True

    def begin(self) -> None:
        """Refuse new requests, and give the running ones `seconds` to finish."""
        if not self.begun:
            self.begun = True
            logger.info("stopping: waiting up to %g s for %d requests", self._seconds, len(self._open))
            asyncio.get_running_loop().call_later(self._seconds, self._over.set)

    def protect(self) -> None:
        """Protect the current task's request, which is recorded as complete, from being cut."""
        if (task := asyncio.current_task()) in self._open and task is not None:
            self._protected.add(task)

    async def wait(self, server: asyncio.Future[Any]) -> bool:
        """Wait for the end of all requests; True if `server` has ended, False if the time ran out."""
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait({server, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if server.done():
            # Their connections have ended, so these requests only clean up.
            await self._settle(0.5)
        for task in self._open - self._protected:
            self._cut.add(task)
            task.cancel()
        await self._settle(_CUT_SECONDS)
        await asyncio.wait({server}, timeout=_CUT_SECONDS)
        return server.done()

    async def _settle(self, seconds: float) -> None:
        if self._open:
            await asyncio.wait(set(self._open), timeout=seconds)

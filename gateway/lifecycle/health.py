"""`/healthz` and `/readyz` of one serving process.

healthz fails when only a restart helps, so that a supervisor restarts the process. readyz fails while
requests would be refused, so that a balancer sends them elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from gateway.errors import RoutesUnavailable
from gateway.lifecycle.drain import Drain
from gateway.routing.route_feed import RouteFeed
from gateway.usage.wal import Wal

logger = logging.getLogger(__name__)

Answer = tuple[int, object]


class Health:
    """Watches the process's background tasks, and reports if requests can be served."""

    def __init__(self, wal: Wal, feed: RouteFeed, drain: Drain) -> None:
        self._wal, self._feed, self._drain = wal, feed, drain
        self._dead: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background; it must never end by itself."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self.tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            logger.critical("background task %s failed", task.get_name(), exc_info=task.exception())
            self._dead.append(task.get_name())

    def _faults(self) -> list[str]:
        dead = self._dead if self._wal.alive else [*self._dead, "usage log's thread"]
        return [f"The {name} has ended; restart the gateway." for name in dead]

    def alive(self) -> Answer:
        """Return the answer of `/healthz`."""
        if faults := self._faults():
            return 503, {"status": "broken", "reasons": faults}
        return 200, {"status": "ok"}

    def reasons(self) -> list[str]:
        """Return the reasons to refuse requests; empty if they are served."""
        reasons = [reason] if (reason := self._wal.admits()) else []
        reasons += self._faults()
        if self._drain.begun:
            reasons.append("The gateway is shutting down.")
        try:
            self._feed.current()
        except RoutesUnavailable as error:
            reasons.append(error.message)
        return reasons

    def ready(self) -> Answer:
        """Return the answer of `/readyz`."""
        reasons, version = self.reasons(), None
        with contextlib.suppress(RoutesUnavailable):
            version = self._feed.current().version
        status = "waiting" if reasons else "ready"
        return (503 if reasons else 200), {"status": status, "routes_version": version, "reasons": reasons}

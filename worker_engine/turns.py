"""One thing at a time, in turns among tenants."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from worker_engine.errors import TooManyRequests


class Turns:
    """A tenant that has had its turn waits until every other tenant that waits has had one."""

    def __init__(self, most_waiting: int) -> None:
        """Of one tenant at most `most_waiting` wait."""
        self._most = most_waiting
        self._busy = False
        self._newest = ""
        """Whose turn it is, or was last."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Tenants in the order in which they are next."""

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Enters when it is this tenant's turn; one block runs at a time. Raises TooManyRequests."""
        await self._enter(tenant)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, tenant: str) -> None:
        if not self._busy:
            self._busy, self._newest = True, tenant
            return
        own = self._waiting.setdefault(tenant, deque())
        if len(own) >= self._most:
            raise TooManyRequests(
                f"{len(own)} grammars of this tenant wait to be compiled, as many as may", retry_after=1
            )
        future = asyncio.get_running_loop().create_future()
        own.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._leave()  # the turn came together with the cancellation
            raise

    def _leave(self) -> None:
        if own := self._waiting.pop(self._newest, None):
            self._waiting[self._newest] = own
        while self._waiting:
            tenant, own = next(iter(self._waiting.items()))
            del self._waiting[tenant]
            while own and own[0].done():
                own.popleft()
            if not own:
                continue
            future = own.popleft()
            if own:
                self._waiting[tenant] = own
            self._newest = tenant
            future.set_result(None)
            return
        self._busy = False

"""A lock that tenants acquire in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from worker_engine.errors import TooManyRequests


class RoundRobinLock:
    """Held by one request at a time; a tenant that has had it goes behind every other tenant that waits."""

    def __init__(self, most_waiting: int) -> None:
        """Of one tenant at most `most_waiting` wait."""
        self._most = most_waiting
        self._busy = False
        self._holder = ""
        """The tenant that has the lock, or had it last."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Tenants in the order in which they are next."""

    @asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[None]:
        """Acquires the lock for the block. Raises TooManyRequests when too many of the tenant's wait."""
        await self._acquire(tenant)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, tenant: str) -> None:
        if not self._busy:
            self._busy, self._holder = True, tenant
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
                self._release()  # the lock came together with the cancellation
            raise

    def _release(self) -> None:
        if own := self._waiting.pop(self._holder, None):
            self._waiting[self._holder] = own
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
            self._holder = tenant
            future.set_result(None)
            return
        self._busy = False

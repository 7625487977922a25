"""One lock per copy for all gateways, in Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from redis.asyncio import Redis
from redis.asyncio.lock import Lock
from redis.exceptions import LockNotOwnedError, RedisError

logger = logging.getLogger(__name__)

LEASE_SECONDS: Final = 30
"""A dead gateway's lock ends after this. A load takes milliseconds, or seconds from a slow disk."""
WAIT_SECONDS: Final = 5.0
"""Longest wait for other gateways; another copy can be tried afterwards."""
_POLL_SECONDS: Final = 0.02
_PREFIX: Final = "graftwork:adapter-loads:"
_AWAY: Final = (RedisError, OSError, TimeoutError)


class CopyLocks:
    """Locks by copy. Without Redis only the tasks of this process exclude each other."""

    def __init__(self, redis: Redis | None) -> None:
        self._redis = redis
        self._away = False
        self._own: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, copy_id: str) -> AsyncIterator[None]:
        """Hold the copy's lock in the body, for at most LEASE_SECONDS.

        Raises:
            TimeoutError: another gateway held it for WAIT_SECONDS.
        """
        # Tasks of one process wait for each other here, so that few of them poll Redis.
        own = self._own.setdefault(copy_id, asyncio.Lock())
        async with own:
            shared = await self._acquire(copy_id)
            try:
                yield
            finally:
                if shared is not None:
                    await self._release(shared, copy_id)

    async def _acquire(self, copy_id: str) -> Lock | None:
        """Return the acquired lock, or None if Redis does not answer."""
        if self._redis is None:
            return None
        lock = Lock(self._redis, _PREFIX + copy_id, timeout=LEASE_SECONDS, sleep=_POLL_SECONDS)
        try:
            acquired = await lock.acquire(blocking_timeout=WAIT_SECONDS)
        except _AWAY as error:
            if not self._away:
                logger.warning("adapter loads: Redis is unreachable; gateways do not take turns: %s", error)
            self._away = True
            return None
        self._away = False
        if not acquired:
            raise TimeoutError(f"another gateway held the lock of copy {copy_id} for {WAIT_SECONDS:g} s")
        return lock

    async def _release(self, lock: Lock, copy_id: str) -> None:
        try:
            await lock.release()
        except LockNotOwnedError:
            logger.warning("copy %s: a load took more than the %d s of its lock", copy_id, LEASE_SECONDS)
        except _AWAY as error:
            logger.warning("copy %s: its lock stays until it expires: %s", copy_id, error)

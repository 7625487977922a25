"""Keeps the route table fresh: one snapshot, then deltas, applied off the hot path.

Versions never go back, so that a Redis server restored from an old copy cannot bring a revoked key
back to life: a snapshot with a lower version is left alone until it has stood for RESET_SECONDS, which
a publisher that is alive never lets happen unless its database really was made anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.errors import RoutesUnavailable
from gateway.wire import ROUTES_DELTAS, ROUTES_SNAPSHOT, ROUTES_VERSION, RouteChange, RouteTable, WireError

logger = logging.getLogger(__name__)

STALE_SECONDS: Final = 300.0
RESET_SECONDS: Final = 30.0
_BLOCK_MS: Final = 1000
_RETRY_SECONDS: Final = 0.25
_DELTAS: Final = 1000


class RouteFeed:
    """The newest route table. `run` it as a task."""

    def __init__(
        self, redis: Redis, *, stale_seconds: float = STALE_SECONDS, reset_seconds: float = RESET_SECONDS
    ) -> None:
        self._redis = redis
        self._stale_seconds = stale_seconds
        self._reset_seconds = reset_seconds
        self._table: RouteTable | None = None
        self._contact = time.monotonic()
        self._last_id = "0-0"
        self._lower_since: float | None = None
        self._said = ""

    def current(self) -> RouteTable:
        """Raises RoutesUnavailable before the first snapshot, and when Redis has been away too long."""
        if self._table is None:
            raise RoutesUnavailable(f"No route table yet: {self._said or 'waiting for Redis'}. Retry soon.")
        if time.monotonic() - self._contact > self._stale_seconds:
            raise RoutesUnavailable(
                f"The route table is older than {self._stale_seconds:.0f} s: {self._said}. Retry later."
            )
        return self._table

    async def run(self) -> None:
        """Follows the control plane for ever; outages are logged once and waited out."""
        while True:
            try:
                if self._table is None or not await self._follow(self._table):
                    await self._load()
            except (RedisError, OSError) as error:
                self._say(f"Redis is away ({error})")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self, table: RouteTable) -> bool:
        """Waits for deltas and applies them; False when a snapshot is needed."""
        entries = await self._deltas(_BLOCK_MS)
        if not entries:
            version = await self._redis.get(ROUTES_VERSION)
            if version is None:
                self._say("Redis holds no routes; the control plane's publish_routes writes them")
                return True
            if int(version) == table.version:
                self._lower_since = None
                return True
            # A publish between the two reads is in the stream by now, unless that was trimmed.
            entries = await self._deltas(None) if int(version) > table.version else []
            if not entries:
                return False
        try:
            fresh = table.apply(RouteChange.from_json(fields[b"change"]) for _, fields in entries)
        except (WireError, KeyError) as error:
            logger.warning("routes: %s; reading the snapshot", error)
            return False
        # An old copy's deltas are read and passed over: they do not say that the server is up to date.
        if fresh.version > table.version:
            self._lower_since = None
        self._table = fresh
        self._last_id = entries[-1][0].decode()
        self._said = ""
        return True

    async def _deltas(self, block: int | None) -> list[Any]:
        """(id, fields) of what the stream holds after `_last_id`, waiting `block` milliseconds for some."""
        answer: Any = await self._redis.xread({ROUTES_DELTAS: self._last_id}, _DELTAS, block)
        self._contact = time.monotonic()
        return answer[0][1] if answer else []

    async def _load(self) -> None:
        text = await self._redis.get(ROUTES_SNAPSHOT)
        self._contact = time.monotonic()
        if text is None:
            self._say("Redis holds no routes; the control plane's publish_routes writes them")
            await asyncio.sleep(_RETRY_SECONDS)
            return
        try:
            # A large table takes a while to parse: not on the event loop.
            table = await asyncio.to_thread(RouteTable.from_json, text)
        except WireError as error:
            self._say(f"the snapshot cannot be read ({error})")
            await asyncio.sleep(_RETRY_SECONDS)
            return
        self._last_id = "0-0"
        if self._may_replace(table):
            logger.info("routes: snapshot of version %d", table.version)
            self._table, self._said = table, ""
        else:
            await asyncio.sleep(_RETRY_SECONDS)

    def _may_replace(self, table: RouteTable) -> bool:
        if self._table is None or table.version >= self._table.version:
            self._lower_since = None
            return True
        now = time.monotonic()
        if self._lower_since is None:
            self._lower_since = now
        if now - self._lower_since < self._reset_seconds:
            self._say(
                f"the snapshot went back to version {table.version}; version {self._table.version} stays"
            )
            return False
        self._lower_since = None
        return True

    def _say(self, text: str) -> None:
        if text != self._said:
            logger.warning("routes: %s", text)
            self._said = text

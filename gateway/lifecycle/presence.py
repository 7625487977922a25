"""Publishes this process's status in Redis every few seconds, for the fleet's operators.

Nothing depends on it: a gateway that cannot publish serves as before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from contextlib import suppress
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.errors import ContractError
from contracts.presence import GatewayStatus
from contracts.redis_names import GATEWAYS
from gateway.lifecycle.health import Health
from gateway.lifecycle.state import GatewayState

logger = logging.getLogger(__name__)

SAY_SECONDS: Final = 2.0
_KEEP_SECONDS: Final = 86_400
_SWEEP_SECONDS: Final = 3600.0


class Presence:
    """The presence of one process. `run` it as a task, and `withdraw` it at the end."""

    def __init__(self, redis: Redis, gateway_id: str, state: GatewayState, health: Health) -> None:
        self._redis, self._gateway_id, self._state, self._health = redis, gateway_id, state, health
        # The log slot: after a crash the slot's next owner overwrites this status.
        self._name = state.wal.slot.id
        self._started = time.time()
        self._swept = 0.0

    async def run(self) -> None:
        """Publish until cancelled; an outage is logged once and waited out."""
        silent = False
        while True:
            try:
                await self._say()
                silent = False
            except (RedisError, OSError) as error:
                if not silent:
                    logger.info("presence: Redis is unreachable; this gateway is not announced: %s", error)
                silent = True
            except Exception:
                # No error here may restart a gateway that serves.
                if not silent:
                    logger.exception("presence: this gateway is not announced")
                silent = True
            await asyncio.sleep(SAY_SECONDS)

    async def withdraw(self) -> None:
        """Remove the status, so that a stopped process is not reported as missing."""
        with suppress(RedisError, OSError, TimeoutError):
            await asyncio.wait_for(self.forget(self._name), 1)

    async def forget(self, slot: str) -> None:
        """Remove the status of a log slot whose process is gone. Raises RedisError."""
        await self._redis.hdel(GATEWAYS, slot)

    async def _say(self) -> None:
        # Redis's own clock is the same for all gateways and readers.
        seconds, micros = await self._redis.time()
        status = self._status(seconds + micros / 1e6)
        await self._redis.hset(GATEWAYS, self._name, status.to_json())
        await self._redis.expire(GATEWAYS, _KEEP_SECONDS)
        if self._swept + _SWEEP_SECONDS < status.at:
            self._swept = status.at
            await self._forget_old(status.at)

    async def _forget_old(self, now: float) -> None:
        """Remove old statuses of dead processes: the hash itself lives while any gateway does."""
        statuses: dict[bytes, bytes] = await cast(Any, self._redis.hgetall(GATEWAYS))
        for slot, text in statuses.items():
            with suppress(ContractError):
                if GatewayStatus.from_json(text).at < now - _KEEP_SECONDS:
                    await self.forget(slot.decode())

    def _status(self, at: float) -> GatewayStatus:
        state, reasons = self._state, self._health.reasons()
        disk = shutil.disk_usage(state.wal.folder)
        return GatewayStatus(
            at=at,
            id=self._gateway_id,
            pid=os.getpid(),
            started_at=self._started,
            ready=not reasons,
            reasons=tuple(reasons),
            routes_version=state.feed.version,
            routes_age=round(state.feed.age, 3),
            in_flight=state.in_flight,
            held=state.room.held,
            backlog_bytes=state.backlog,
            disk_free=disk.free,
            disk_total=disk.total,
        )

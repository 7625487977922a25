"""Ships logs of gateway processes that ended and that no other process took over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.usage.shipper import Shipper
from gateway.usage.wal import Wal
from gateway.usage.wal_slots import Slot, abandoned

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS: Final = 60
_INGEST_SECONDS: Final = 10
"""How long a shipped log is held until its events are ingested; then until the next attempt."""


async def ship_abandoned_logs(root: Path, redis: Redis, forget: Callable[[str], Awaitable[object]]) -> None:
    """Ship abandoned logs below `root`, once a minute until cancelled.

    Args:
        forget: removes the slot's last heartbeat; called once its events are ingested.
    """
    while True:
        try:
            for slot in abandoned(root):
                await _ship(slot, redis, forget)
        except OSError as error:
            logger.warning("usage log: abandoned slots are not shipped yet: %s", error)
        await asyncio.sleep(_INTERVAL_SECONDS)


async def _ship(slot: Slot, redis: Redis, forget: Callable[[str], Awaitable[object]]) -> None:
    """Empty a slot; events that cannot be shipped stay for the next time."""
    try:
        log = Wal(slot)
    except OSError as error:
        logger.warning("usage log: %s cannot be opened for shipping: %s", slot.folder, error)
        slot.release()
        return
    shipper, ingested = Shipper(log, redis), False
    try:
        if await shipper.drain():
            for _ in range(_INGEST_SECONDS * 5):
                if ingested := await shipper.ingested():
                    await forget(slot.id)
                    break
                await asyncio.sleep(0.2)
    except (RedisError, OSError) as error:
        logger.warning("usage log: Redis is unreachable; %s is not shipped yet: %s", slot.folder, error)
    finally:
        log.close(delete=ingested)

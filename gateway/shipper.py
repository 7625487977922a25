"""Moves closed usage events from the write-ahead log to the Redis stream that the control plane reads.

Each batch is one script: it compares the log position that Redis remembers for this slot with the one
that the batch starts at (positions are of fixed width, so they compare as strings), appends the events
and moves the position, all or nothing. So a batch whose answer was lost is not shipped twice, and Redis
may be away for as long as the disk has room. When Redis has lost the position (an emptied server), the
copy on disk is used; then events may repeat, and the control plane's unique constraint drops them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.wal import Wal
from gateway.wal_records import (
    CLOSED,
    Position,
    decode,
    read_lines,
    segment_numbers,
    segment_path,
    stored_position,
    write_durably,
)
from gateway.wire import USAGE_STREAM

logger = logging.getLogger(__name__)

SHIPPED_PREFIX: Final = "graftwork:usage:shipped:"
"""Redis string per log slot: position up to which its events are in the stream."""
_KEEP_SECONDS: Final = 32 * 86_400
_BATCH_BYTES: Final = 1 << 18
_BUSY_EVENTS: Final = 200
_IDLE_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.5

SHIP: Final = """
local shipped = redis.call('GET', KEYS[2])
if shipped and shipped > ARGV[1] then return shipped end
for index = 4, #ARGV do redis.call('XADD', KEYS[1], '*', 'event', ARGV[index]) end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
return ARGV[2]
"""


class Shipper:
    """Ships one log slot; `run` it as a task, or `drain` a slot that nobody writes any more."""

    def __init__(self, wal: Wal, redis: Redis) -> None:
        self._wal = wal
        self._redis = redis
        self._script = redis.register_script(SHIP)
        self._key = SHIPPED_PREFIX + wal.slot.id
        self._file = wal.folder / "position"
        self._position = stored_position(wal.folder)
        self._known = False
        self._behind = False

    @property
    def position(self) -> Position:
        """Everything before this place is in the stream."""
        return self._position

    async def run(self) -> None:
        """Ships for ever; an outage of Redis is logged once and waited out."""
        away = False
        while True:
            try:
                moved = await self._step()
                if away:
                    logger.info("usage log: Redis is back, shipping from %s", self._position)
                away = False
            except (RedisError, OSError) as error:
                if not away:
                    logger.warning("usage log: Redis is away, events wait on disk: %s", error)
                away, moved, self._known = True, False, False
            # Waiting a moment gathers a batch; only a backlog is shipped without a pause.
            if not (moved and self._behind):
                await asyncio.sleep(_RETRY_SECONDS if away else _IDLE_SECONDS)

    async def drain(self) -> bool:
        """Ships all that is durable and deletes what is shipped; True when nothing is left to ship.

        Raises:
            RedisError: Redis is away; what is not shipped stays on disk.
        """
        self._known = False
        await self._wal.commit()
        self._wal.checkpoint = self._wal.segment
        while await self._step():
            pass
        write_durably(self._file, str(self._position))
        return self._position == self._wal.durable

    async def _step(self) -> bool:
        """Ships one batch; False when there was nothing to read."""
        if not self._known:
            await self._adopt()
        events, end = self._read()
        self._behind = len(events) >= _BUSY_EVENTS
        if end == self._position:
            return False
        if events:
            answer = await cast(
                Any,
                self._script(
                    keys=[USAGE_STREAM, self._key],
                    args=[str(self._position), str(end), _KEEP_SECONDS, *events],
                ),
            )
            end = Position.parse(answer.decode())
        changed = end.segment != self._position.segment
        self._position = end
        if changed or not events:
            self._store()
        self._delete_shipped()
        return True

    async def _adopt(self) -> None:
        """Takes over the position that Redis remembers; the one on disk is for a Redis that lost it."""
        stored = cast(bytes | None, await self._redis.get(self._key))
        if stored is not None:
            self._position = Position.parse(stored.decode())
        if self._position > self._wal.durable:
            logger.error(
                "usage log: %s ends at %s but is shipped up to %s, so its events are taken for shipped: "
                "stop the gateway, delete the file `id` there, start it again",
                self._wal.folder, self._wal.durable, self._position,
            )  # fmt: skip
        self._known = True

    def _read(self) -> tuple[list[bytes], Position]:
        """Payloads of closed events after the position, and the place after the last one read."""
        segment, offset = self._position.segment, self._position.offset
        durable = self._wal.durable
        path = segment_path(self._wal.folder, segment)
        if segment > durable.segment or (segment == durable.segment and offset >= durable.offset):
            return [], self._position
        lines: list[bytes] = []
        if path.exists():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                limit = _BATCH_BYTES
                if segment == durable.segment:
                    limit = min(limit, durable.offset - offset)
                lines, offset = read_lines(descriptor, offset, limit)
            finally:
                os.close(descriptor)
        if not lines:
            return [], self._after(segment)
        found = (decode(line) for line in lines)
        events = [record[1] for record in found if record is not None and record[0] == CLOSED]
        return events, Position(segment, offset)

    def _after(self, segment: int) -> Position:
        """The start of the next segment, or the same place when this one is still being written."""
        later = [number for number in segment_numbers(self._wal.folder) if number > segment]
        if segment >= self._wal.durable.segment or not later:
            return self._position
        return Position(later[0], 0)

    def _delete_shipped(self) -> None:
        """Deletes segments that are shipped whole and hold nothing about an open stream."""
        below = min(self._position.segment, self._wal.checkpoint)
        for number in segment_numbers(self._wal.folder):
            if number < below:
                segment_path(self._wal.folder, number).unlink()

    def _store(self) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(self._position))
        fresh.replace(self._file)

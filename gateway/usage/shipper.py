"""Moves closed usage events from the write-ahead log to the Redis stream that the control plane reads.

Each batch is one script. It compares the slot's log position in Redis with the expected one, appends the
events and moves the position, all or nothing. So a batch whose answer was lost is not shipped twice, and
Redis may be away for as long as the disk has room. A Redis that lost the last seconds has an older position,
and gets the events from there again. One that lost everything gets all that the log still has. That is every
event that is not in the database: a segment is deleted only after the control plane has taken its events from
the stream. The control plane's unique constraint drops events that arrive twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.redis_names import USAGE_STREAM
from gateway.usage.wal import Wal
from gateway.usage.wal_records import (
    CLOSED,
    Position,
    decode,
    read_lines,
    segment_numbers,
    segment_path,
    stored_position,
)

logger = logging.getLogger(__name__)

SHIPPED_PREFIX: Final = "graftwork:usage:shipped:"
"""Redis string per log slot: position up to which its events are in the stream."""
_KEEP_SECONDS: Final = 32 * 86_400
_BATCH_BYTES: Final = 1 << 14
"""About thirty events. Reading them, and Redis on the same processor, hold up requests for some 0.2 ms."""
_PAUSE_SECONDS: Final = 0.004
"""Between such batches."""
_BACKLOG_BYTES: Final = 1 << 18
"""A larger backlog, as after an outage, is shipped by _BACKLOG_BATCH_BYTES and without a pause."""
_BACKLOG_BATCH_BYTES: Final = 1 << 16
_IDLE_SECONDS: Final = 0.1
_IDLE_STEPS: Final = 10
"""After this many idle steps, Redis is asked if it still has the shipped data."""
_RETRY_SECONDS: Final = 0.5

SHIP: Final = """
local shipped = redis.call('GET', KEYS[2]) or ''
if shipped ~= ARGV[1] then return shipped end
for index = 4, #ARGV do redis.call('XADD', KEYS[1], '*', 'event', ARGV[index]) end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
return ARGV[2]
"""
"""KEYS: stream, position. ARGV: the expected position, the one after the events, seconds to keep it, events.
Returns Redis's position afterwards; "" stands for none."""

EDGES: Final = """
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then return false end
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return {first and first[1] or '', last and last[1] or ''}
"""
"""KEYS as above. Returns the ids of the oldest and the newest entry, unless the position is unexpected: then
Redis has lost data, and an absent entry need not have been ingested."""

_Id = tuple[int, int]
"""Id of a stream entry; the later of two entries has the greater id."""


class Shipper:
    """Ships one log slot; `run` it as a task, or `drain` a slot without a writer."""

    def __init__(self, wal: Wal, redis: Redis) -> None:
        self._wal = wal
        self._redis = redis
        self._ship = redis.register_script(SHIP)
        self._edges = redis.register_script(EDGES)
        self._key = SHIPPED_PREFIX + wal.slot.id
        self._file = wal.folder / "position"
        self._position = stored_position(wal.folder)
        self._remembered = ""
        """Redis's last known position of this slot."""
        self._known = False
        self._behind = False
        self._oldest = min(segment_numbers(wal.folder), default=wal.segment)
        self._below, self._newest = 0, (0, 0)
        """Segments below `_below` are ingested once the stream's entries up to `_newest` are gone."""
        self.num_shipped = 0

    @property
    def position(self) -> Position:
        """Everything before this position is in the stream."""
        return self._position

    async def run(self) -> None:
        """Ship until cancelled; an outage of Redis is logged once and waited out."""
        away, idle = False, 0
        while True:
            try:
                moved = await self._step()
                idle = 0 if moved else idle + 1
                if idle % _IDLE_STEPS == _IDLE_STEPS - 1:
                    await self._stream()
                if away:
                    logger.info("usage log: Redis is reachable again; shipping from %s", self._position)
                away = False
            except (RedisError, OSError) as error:
                if not away:
                    logger.warning("usage log: Redis is unreachable; events wait on disk: %s", error)
                away, moved, self._known = True, False, False
            if away:
                await asyncio.sleep(_RETRY_SECONDS)
            elif not (moved and self._behind):
                # A short pause gathers a batch.
                await asyncio.sleep(_IDLE_SECONDS)
            elif not self._backlog():
                await asyncio.sleep(_PAUSE_SECONDS)

    async def drain(self) -> bool:
        """Ship all that is durable; True if nothing is left to ship.

        Raises:
            RedisError: Redis is away; unshipped events stay on disk.
        """
        self._known = False
        await self._wal.commit()
        while await self._step():
            pass
        self._store()
        return self._position == self._wal.durable

    async def ingested(self) -> bool:
        """Return True if everything shipped is in the database. Raises RedisError."""
        if (edges := await self._stream()) is None:
            return False
        oldest, newest = edges
        self._newest = self._newest if self._below > self._position.segment else newest
        self._below = self._position.segment + 1
        return oldest > self._newest

    async def _step(self) -> bool:
        """Ship one batch; False if there was nothing to read."""
        if not self._known:
            await self._adopt()
        events, end = self._read()
        self._behind = end < self._wal.durable
        if end == self._position:
            await self._delete_ingested()
            return False
        if events:
            arguments: list[str | int | bytes] = [self._remembered, str(end), _KEEP_SECONDS, *events]
            answer: bytes = await cast(Any, self._ship(keys=[USAGE_STREAM, self._key], args=arguments))
            if answer.decode() != str(end):
                logger.warning("usage log: Redis has position %r instead of %s", answer, self._remembered)
                self._known = False
                return True
            self._remembered = str(end)
            self.num_shipped += len(events)
        changed = end.segment != self._position.segment
        self._position = end
        await self._delete_ingested()
        if changed or not events:
            self._store()
        return True

    async def _adopt(self) -> None:
        """Continue from Redis's position; from the log's start if Redis has none."""
        stored = cast(bytes | None, await self._redis.get(self._key))
        self._remembered = (stored or b"").decode()
        self._position = Position.parse(self._remembered) if stored else Position(0, 0)
        self._below = 0
        if self._position > self._wal.durable:
            logger.error(
                "usage log: %s ends at %s but is shipped up to %s: it was emptied or replaced by hand, and "
                "is shipped from its start",
                self._wal.folder,
                self._wal.durable,
                self._position,
            )
            self._position = Position(0, 0)
        self._known = True

    def _read(self) -> tuple[list[bytes], Position]:
        """Return payloads of closed events after the position, and the position after the last one."""
        segment, offset = self._position.segment, self._position.offset
        durable = self._wal.durable
        path = segment_path(self._wal.folder, segment)
        if segment > durable.segment or (segment == durable.segment and offset >= durable.offset):
            return [], self._position
        lines: list[bytes] = []
        if path.exists():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                stop = durable.offset if segment == durable.segment else None
                size = _BACKLOG_BATCH_BYTES if self._backlog() else _BATCH_BYTES
                lines, offset = read_lines(descriptor, offset, size, stop)
            finally:
                os.close(descriptor)
        if not lines:
            return [], self._after(segment)
        found = (decode(line) for line in lines)
        events = [record[1] for record in found if record is not None and record[0] == CLOSED]
        return events, Position(segment, offset)

    def _backlog(self) -> bool:
        """Return True if more events wait than gather in a busy moment."""
        durable, position = self._wal.durable, self._position
        return durable.segment != position.segment or durable.offset - position.offset > _BACKLOG_BYTES

    def _after(self, segment: int) -> Position:
        """Return the start of the next segment, or the same position while this one is being written."""
        later = [number for number in segment_numbers(self._wal.folder) if number > segment]
        if segment >= self._wal.durable.segment or not later:
            return self._position
        return Position(later[0], 0)

    async def _delete_ingested(self) -> None:
        """Delete segments whose events are in the database and that hold nothing about an open stream."""
        below = min(self._position.segment, self._wal.checkpoint)
        if self._oldest >= below or (edges := await self._stream()) is None:
            return
        oldest, newest = edges
        if not self._below:
            self._below, self._newest = below, newest
        if oldest > self._newest:
            for number in segment_numbers(self._wal.folder):
                # From the oldest on: a stream's progress must go before the record that closes it.
                if number < self._below:
                    segment_path(self._wal.folder, number).unlink()
            self._oldest, self._below = self._below, 0

    async def _stream(self) -> tuple[_Id, _Id] | None:
        """Return oldest and newest entry of the stream; None if Redis has lost data."""
        arguments = [USAGE_STREAM, self._key]
        edges: list[bytes] | None = await cast(Any, self._edges(keys=arguments, args=[self._remembered]))
        if edges is None:
            self._known = False
            return None
        return _id(edges[0] or b"%d-0" % (1 << 63)), _id(edges[1] or b"0-0")

    def _store(self) -> None:
        """Store the position, so that a log that was emptied by hand continues after the shipped events."""
        fresh = self._file.with_suffix(".new")
        try:
            fresh.write_text(str(self._position))
            fresh.replace(self._file)
        except OSError as error:
            logger.warning("usage log: the position cannot be stored: %s", error)


def _id(text: bytes) -> _Id:
    milliseconds, _, sequence = text.partition(b"-")
    return int(milliseconds), int(sequence)

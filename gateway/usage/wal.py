"""The local write-ahead log of usage: group commit by one thread, segments, recovery.

    slot folder/   lock   id   position   0000000000000001.wal ...

The event loop appends records to memory. A thread writes the gathered records by one synchronous write
(O_DSYNC) and wakes the waiters. Writes go to explicit offsets, so a failed write is repeated with all its
bytes: after EIO the kernel may treat pages as clean that never reached the disk. The next segment is
preallocated while the current one is half empty. If the disk has no room for it, new work is refused
(`admits`) and the remaining room is for running requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from gateway.usage.time_slice import take_short_slices
from gateway.usage.wal_records import (
    CLOSED,
    PROGRESS,
    Position,
    encode,
    records,
    segment_numbers,
    segment_path,
    stored_position,
    sync_folder,
    trim,
)
from gateway.usage.wal_slots import Slot

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 16 << 20
_FILL_BYTES: Final = 1 << 16
_QUICK_SECONDS: Final = 0.001
"""A slower disk must not hold up the event loop: the thread's next write measures it again."""
_RETRY_SECONDS: Final = 0.25
_TRIES_AT_STOP: Final = 20


@dataclass(slots=True)
class _Batch:
    """Records to write to one segment."""

    segment: int
    offset: int
    lines: list[bytes] = field(default_factory=list)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class Wal:
    """The log of one slot. All methods except the thread's own are for the event loop's thread.

    Attributes:
        durable: everything before this position survives a power cut.
        checkpoint: segments below this number hold nothing about streams that are still open.
        recovered: usage events of streams that a former process left open, now closed as interrupted.
    """

    def __init__(self, slot: Slot, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Recover the slot's records, then start a fresh segment.

        Raises:
            OSError: the folder cannot be written.
        """
        self.slot = slot
        self.folder = slot.folder
        self._segment_bytes = segment_bytes
        numbers = segment_numbers(self.folder)
        interrupted = _open_streams(self.folder, numbers)
        if numbers:
            # A process that dies repeatedly must not fill the disk with preallocated room.
            trim(segment_path(self.folder, numbers[-1]))
        self.recovered = len(interrupted)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._stopping = False
        self._urgent = False
        self._writing = False
        """True while the thread writes: its records come before those that are appended now."""
        self._write_seconds = 0.0
        self._write_error = self._room_error = ""
        # After an emptied log, continue behind the shipped position, or new events would count as shipped.
        self._segment = max([*numbers, stored_position(self.folder).segment]) + 1
        self._offset = 0
        self._batches: deque[_Batch] = deque([_Batch(self._segment, 0)])
        self.durable = Position(self._segment, 0)
        self.checkpoint = 0
        self._descriptor = self._allocate(self._segment)
        self._descriptor_segment = self._segment
        self._filled = 0
        """Blocks of the current segment are filled with zeros up to here."""
        self._next_descriptor: int | None = None
        for payload in interrupted:
            self.append(CLOSED, payload)
        self._thread = threading.Thread(target=self._run, name="wal", daemon=True)
        self._thread.start()

    @property
    def segment(self) -> int:
        """Number of the segment that the next record goes to."""
        return self._segment

    @property
    def alive(self) -> bool:
        """Return True if the writing thread still runs."""
        return self._thread.is_alive()

    def admits(self) -> str:
        """Return the reason to refuse new work, or ""."""
        return self._write_error or self._room_error

    def append(self, kind: bytes, payload: bytes) -> None:
        """Add a record in memory; the next commit or flush writes it. Never fails or waits."""
        line = encode(kind, payload)
        with self._lock:
            if self._offset + len(line) > self._segment_bytes:
                self._segment += 1
                self._offset = 0
            if not self._batches or self._batches[-1].segment != self._segment:
                self._batches.append(_Batch(self._segment, self._offset))
            self._batches[-1].lines.append(line)
            self._offset += len(line)

    def commit(self, *, alone: bool = False) -> asyncio.Future[None]:
        """Return a future that resolves once every record appended so far is durable.

        Args:
            alone: True if no other work waits for the event loop. Then, on a quick disk, the record is
                written at once: waking the thread takes as long as such a write.
        """
        loop = self._loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if alone and self._write_seconds < _QUICK_SECONDS and self._written_here():
            waiter.set_result(None)
            return waiter
        with self._lock:
            if not self._batches:
                # All appended records are with the thread, which wakes the waiters of a batch in order.
                self._batches.append(_Batch(self._segment, self._offset))
            self._batches[-1].waiters.append(waiter)
            self._urgent = True
            self._work.notify()
        return waiter

    def _written_here(self) -> bool:
        """Write the gathered records here, unless the thread must: while it writes or retries a failure, or
        to begin a segment. True if they were written."""
        with self._lock:
            if self._writing or self._urgent or len(self._batches) != 1:
                return False
            batch = self._batches[0]
            if batch.segment != self._descriptor_segment or batch.waiters:
                return False
            try:
                self._write(batch, data := b"".join(batch.lines))
            except OSError:
                return False
            self._batches.popleft()
            self.durable = Position(batch.segment, batch.offset + len(data))
            if self._wants_next():
                self._urgent = True
                self._work.notify()
        return True

    def flush(self) -> None:
        """Start writing the gathered records, without waiting for it."""
        with self._lock:
            self._urgent = True
            self._work.notify()

    def close(self, *, delete: bool = False) -> None:
        """Write the remaining records, end the thread and release the slot; `delete` removes its segments.

        The folder stays: another process may be about to lock it.
        """
        with self._lock:
            self._stopping = True
            self._work.notify()
        self._thread.join()
        os.close(self._descriptor)
        if self._next_descriptor is not None:
            os.close(self._next_descriptor)
        if delete:
            for number in segment_numbers(self.folder):
                segment_path(self.folder, number).unlink()
        self.slot.release()

    # Run by the thread.

    def _run(self) -> None:
        take_short_slices()
        try:
            self._write_batches()
        except Exception as error:
            logger.critical("the usage log's thread has ended", exc_info=True)
            self._write_error = f"the usage log's thread has ended ({error!r}); restart the gateway"

    def _write_batches(self) -> None:
        while True:
            with self._lock:
                self._writing = False
                while not self._urgent and not self._stopping:
                    self._work.wait()
                self._urgent, self._writing = False, True
                batches, self._batches = self._batches, deque()
                stopping = self._stopping
            for batch in batches:
                if not self._persist(batch):
                    return
            if stopping and not self._batches:
                return
            self._prepare_next()

    def _persist(self, batch: _Batch) -> bool:
        data = b"".join(batch.lines)
        for tries in itertools.count(1):
            try:
                self._write(batch, data)
            except OSError as error:
                if not self._write_error:
                    logger.error("usage log: cannot write, so new requests are refused: %s", error)
                self._write_error = f"the usage log cannot be written: {error.strerror}"
                if self._stopping and tries >= _TRIES_AT_STOP:
                    logger.critical("usage log: %d records were lost at shutdown", len(batch.lines))
                    return False
                threading.Event().wait(_RETRY_SECONDS)
                continue
            break
        self._write_error = ""
        self.durable = Position(batch.segment, batch.offset + len(data))
        if batch.waiters and self._loop is not None:
            # The loop may be closed when the process stops.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_wake, batch.waiters)
        return True

    def _write(self, batch: _Batch, data: bytes) -> None:
        if batch.segment != self._descriptor_segment:
            fresh = self._next_descriptor
            if fresh is None:
                fresh = self._allocate(batch.segment)
            full, self._descriptor, self._descriptor_segment = self._descriptor, fresh, batch.segment
            self._next_descriptor = None
            with contextlib.suppress(OSError):
                # All its data is durable, so an error is harmless.
                os.close(full)
            self._filled = 0
        # The first write to a block changes the file's metadata, even if it was preallocated, and waits for
        # the file system's journal. So many blocks at once are filled with zeros in advance; a later write to
        # them changes only data, in half the time.
        end = batch.offset + len(data)
        front = min(-(-end // _FILL_BYTES) * _FILL_BYTES, self._segment_bytes)
        zeros = bytes(max(0, front - end)) if end > self._filled else b""
        begun = time.perf_counter()
        written = os.pwrite(self._descriptor, data + zeros, batch.offset)
        self._write_seconds = time.perf_counter() - begun
        if written == len(data) + len(zeros):
            self._filled = max(self._filled, front)
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], batch.offset + written)

    def _prepare_next(self) -> None:
        """Preallocate the next segment once half of this one is used; without it, new work is refused."""
        if not self._wants_next():
            return
        try:
            self._next_descriptor = self._allocate(self.durable.segment + 1)
        except OSError as error:
            if not self._room_error:
                logger.error("usage log: no space for a segment, so new requests are refused: %s", error)
            self._room_error = f"the usage log has no room: {error.strerror}"
        else:
            self._room_error = ""

    def _wants_next(self) -> bool:
        return self._next_descriptor is None and self.durable.offset >= self._segment_bytes // 2

    def _allocate(self, number: int) -> int:
        path = segment_path(self.folder, number)
        # O_DSYNC: each write is durable when it returns, as with an fdatasync after it, but the thread has to
        # take the GIL once instead of twice.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DSYNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._segment_bytes)
            sync_folder(self.folder)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        return descriptor


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _open_streams(folder: Path, numbers: list[int]) -> list[bytes]:
    """Return the last progress record of every stream without a closing record."""
    streams: dict[str, bytes] = {}
    for number in numbers:
        for kind, payload in records(segment_path(folder, number)):
            event_id = orjson.loads(payload)["event_id"]
            if kind == PROGRESS:
                streams[event_id] = payload
            elif kind == CLOSED:
                streams.pop(event_id, None)
    return list(streams.values())

"""Records that the event loop writes itself, where this delays no request."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.usage import wal
from gateway.usage.wal import Wal
from gateway.usage.wal_records import CLOSED, segment_numbers
from tests.gateway.usage.test_wal import commit, payload, slot, stored
from tests.waiting import eventually

PWRITE = os.pwrite


class Writers:
    """Stands for `os.pwrite`: who wrote, and how slow or broken the disk is, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.seconds = self.now = 0.0
        self.failures = 0
        self.held = threading.Event()
        self.held.set()
        monkeypatch.setattr(os, "pwrite", self._write)
        monkeypatch.setattr(wal, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def _write(self, descriptor: int, data: bytes, offset: int) -> int:
        self.names.append("loop" if threading.current_thread() is threading.main_thread() else "thread")
        self.now += self.seconds
        self.held.wait(5)
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "Input/output error")
        return PWRITE(descriptor, data, offset)


async def alone(log: Wal) -> bool:
    """Commits; whether it was durable at once."""
    waiter = log.commit(alone=True)
    at_once = waiter.done()
    await asyncio.wait_for(waiter, 5)
    # The thread wakes who waits before it says that it rests.
    await asyncio.to_thread(eventually, lambda: not log._writing)
    return at_once


def test_whoever_is_alone_is_written_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, writers = Wal(slot(tmp_path)), Writers(monkeypatch)

    async def work() -> None:
        for number in range(3):
            log.append(CLOSED, payload(number))
            assert await alone(log)
            assert stored(tmp_path)[-1] == (CLOSED, payload(number)), "on disk when it is said"
        log.append(CLOSED, payload(3))
        await commit(log)

    asyncio.run(work())
    log.close()
    assert writers.names == ["loop"] * 3 + ["thread"]
    assert stored(tmp_path) == [(CLOSED, payload(number)) for number in range(4)]


def test_after_a_slow_write_the_thread_tells_how_the_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, writers = Wal(slot(tmp_path)), Writers(monkeypatch)

    async def work() -> None:
        for seconds in (0.0, 0.02, 0.02, 0.0, 0.0):
            writers.seconds = seconds
            log.append(CLOSED, b"x")
            await alone(log)

    asyncio.run(work())
    log.close()
    # The second was slow: the third and the fourth are the thread's, and the fourth was quick again.
    assert writers.names == ["loop", "loop", "thread", "thread", "loop"]


def test_what_fails_is_the_threads_to_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, writers = Wal(slot(tmp_path)), Writers(monkeypatch)

    async def work() -> None:
        writers.failures = 2
        log.append(CLOSED, payload(0))
        assert not await alone(log)
        log.append(CLOSED, payload(1))
        assert await alone(log)

    asyncio.run(work())
    log.close()
    assert writers.names == ["loop", "thread", "thread", "loop"]
    assert stored(tmp_path) == [(CLOSED, payload(0)), (CLOSED, payload(1))]


def test_nothing_overtakes_what_the_thread_has_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, writers = Wal(slot(tmp_path)), Writers(monkeypatch)

    async def work() -> None:
        writers.held.clear()
        log.append(CLOSED, payload(0))
        first = log.commit()
        await asyncio.to_thread(eventually, lambda: writers.names == ["thread"])
        log.append(CLOSED, payload(1))
        second = log.commit(alone=True)
        assert not second.done()
        writers.held.set()
        await asyncio.wait_for(asyncio.gather(first, second), 5)

    asyncio.run(work())
    log.close()
    assert writers.names == ["thread", "thread"]
    assert stored(tmp_path) == [(CLOSED, payload(0)), (CLOSED, payload(1))]


def test_segments_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread prepares and begins them, however the records come."""
    log, _ = Wal(slot(tmp_path), segment_bytes=4096), Writers(monkeypatch)
    at_once = 0

    async def work() -> None:
        nonlocal at_once
        for number in range(200):
            log.append(CLOSED, payload(number, text="x" * 100))
            at_once += await alone(log)

    asyncio.run(work())
    log.close()
    assert at_once > 100
    assert len(segment_numbers(log.folder)) >= 6
    assert stored(tmp_path) == [(CLOSED, payload(number, text="x" * 100)) for number in range(200)]

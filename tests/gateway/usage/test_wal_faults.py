"""The write-ahead log on a bad disk: EIO, short writes, holes, no room; and processes that die at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.usage.wal import Wal
from gateway.usage.wal_records import CLOSED, PROGRESS, encode, records, segment_numbers, segment_path
from tests.gateway.usage.test_wal import commit, payload, slot, stored
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")

PWRITE = os.pwrite


def test_a_write_that_failed_is_done_again_with_every_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After EIO the kernel may call a page clean whose bytes are lost: writing must not go on behind them."""
    log = Wal(slot(tmp_path))
    failures = 3

    def fails(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal failures
        if failures:
            failures -= 1
            PWRITE(descriptor, b"?" * (len(data) // 2), offset)
            raise OSError(errno.EIO, "Input/output error")
        return PWRITE(descriptor, data, offset)

    async def work() -> None:
        log.append(CLOSED, payload(0))
        await commit(log)
        monkeypatch.setattr(os, "pwrite", fails)
        for number in range(1, 4):
            log.append(CLOSED, payload(number))
        waiting = log.commit()
        await asyncio.to_thread(eventually, lambda: "Input/output error" in log.admits())
        assert not waiting.done()
        log.append(CLOSED, payload(4))
        await asyncio.wait_for(waiting, 10)
        await commit(log)
        assert log.admits() == ""

    asyncio.run(work())
    log.close()
    assert failures == 0
    told = "usage log: cannot write, so new requests are refused: [Errno 5] Input/output error"
    assert caplog.messages.count(told) == 1, "three failures in a row are one event for the operator"
    assert stored(tmp_path) == [(CLOSED, payload(number)) for number in range(5)]


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Wal(slot(tmp_path))
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: PWRITE(file, data[:7], offset))

    async def work() -> None:
        for number in range(3):
            log.append(CLOSED, payload(number))
        await commit(log)

    asyncio.run(work())
    log.close()
    assert stored(tmp_path) == [(CLOSED, payload(number)) for number in range(3)]


def test_blocks_are_filled_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a write beyond what is filled may wait for the file system's journal; zeros stay room."""
    writes: list[tuple[int, int]] = []

    def notes(descriptor: int, data: bytes, offset: int) -> int:
        writes.append((offset, len(data)))
        return PWRITE(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", notes)
    log = Wal(slot(tmp_path), segment_bytes=160 << 10)
    payloads = [payload(number, filler="x" * 1000) for number in range(300)]

    async def work() -> None:
        for each in payloads:
            log.append(CLOSED, each)
            await commit(log)

    asyncio.run(work())
    log.close()
    assert stored(tmp_path) == [(CLOSED, each) for each in payloads]
    ends = [offset + length for offset, length in writes if length > 2000]
    assert ends == [64 << 10, 128 << 10, 160 << 10] * 2


LINE = len(encode(CLOSED, payload(0)))


@pytest.mark.parametrize(
    ("start", "length", "left"),
    [
        (LINE + 5, 1, {0, 2, 3, 4}),
        (LINE + 5, LINE, {0, 3, 4}),
        (LINE, LINE, {0, 2, 3, 4}),
        (0, LINE, {1, 2, 3, 4}),
        (0, 3, {1, 2, 3, 4}),
        (2 * LINE - 1, 1, {0, 2, 3, 4}),
        (3 * LINE + 1, 2 * LINE, {0, 1, 2}),
    ],
    ids=["a byte", "two in part", "one exactly", "the first", "the head", "a newline", "the tail"],
)
def test_a_hole_costs_only_what_lay_in_it(tmp_path: Path, start: int, length: int, left: set[int]) -> None:
    log = Wal(slot(tmp_path))
    for number in range(5):
        log.append(CLOSED, payload(number))
    log.close()
    path = segment_path(tmp_path / "000", 1)
    data = bytearray(path.read_bytes())
    data[start : start + length] = bytes(length)
    path.write_bytes(data)
    kept = [(CLOSED, payload(number)) for number in sorted(left)]
    assert list(records(path)) == kept
    again = Wal(slot(tmp_path))
    again.close()
    assert stored(tmp_path) == kept, "trimming kept what is whole"


def test_processes_that_die_at_once_do_not_fill_the_disk(tmp_path: Path) -> None:
    for number in range(6):
        log = Wal(slot(tmp_path), segment_bytes=1 << 20)
        if number == 2:
            log.append(PROGRESS, payload(1))
        log.close()
    numbers = segment_numbers(tmp_path / "000")
    sizes = [segment_path(tmp_path / "000", number).stat().st_size for number in numbers]
    assert len(sizes) == 6
    assert sum(sizes[:-1]) == len(encode(PROGRESS, payload(1))) + len(encode(CLOSED, payload(1)))


def test_a_thread_that_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Wal(slot(tmp_path))

    def breaks(*_: object) -> int:
        raise RuntimeError("what nobody foresaw")

    monkeypatch.setattr(os, "pwrite", breaks)
    log.append(CLOSED, payload(1))
    log.flush()
    eventually(lambda: "thread has ended" in log.admits())
    log.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; the test is skipped where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_file_system_loses_nothing_that_was_taken(small_disk: Path) -> None:
    """ENOSPC for real: work is refused while what was taken has room, and goes on when there is more."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(512 << 10))
    log = Wal(slot(small_disk), segment_bytes=128 << 10)
    taken = 0

    async def work() -> None:
        nonlocal taken
        while log.admits() == "":
            log.append(CLOSED, payload(taken, filler="x" * 1000))
            taken += 1
            await commit(log)
        assert "no room" in log.admits()
        # Half a segment is reserved for requests that run when new work is refused.
        for _ in range(50):
            log.append(CLOSED, payload(taken, filler="x" * 1000))
            taken += 1
            await commit(log)
        ballast.unlink()
        log.flush()
        await asyncio.to_thread(eventually, lambda: log.admits() == "")

    asyncio.run(work())
    log.close()
    assert taken > 200
    numbers = [data for _, data in stored(small_disk)]
    assert numbers == [payload(number, filler="x" * 1000) for number in range(taken)]


def test_a_restart_on_a_full_file_system_finds_room_in_what_the_dead_had_reserved(small_disk: Path) -> None:
    log = Wal(slot(small_disk), segment_bytes=256 << 10)
    log.append(PROGRESS, payload(1))
    log.close()
    _fill(small_disk / "ballast")
    again = Wal(slot(small_disk), segment_bytes=200 << 10)
    assert again.recovered == 1
    again.close()
    assert stored(small_disk)[-1] == (CLOSED, payload(1))


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))

"""The write-ahead log on disk: one record a line, `<crc32 hex> <kind> <usage event JSON>`.

JSON holds no raw newline, so a damaged record affects only itself: reading goes on at the next line. Segments
are preallocated with zeros. Zeros up to the end are free room; zeros before records are a hole that the disk
made, and are skipped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

PROGRESS: Final = b"P"
"""An open stream's usage event, as if the gateway died now (`status` interrupted)."""
CLOSED: Final = b"C"
"""A usage event, final."""

_READ_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position between two records: segment number, byte offset."""

    segment: int
    offset: int

    def __str__(self) -> str:
        return f"{self.segment:016d}:{self.offset:016d}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text of `str`. Raises ValueError for anything else."""
        segment, _, offset = text.partition(":")
        return cls(int(segment), int(offset))


def encode(kind: bytes, payload: bytes) -> bytes:
    """Encode one record; `payload` must hold no newline."""
    body = kind + b" " + payload
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> tuple[bytes, bytes] | None:
    """Return (kind, payload) of a record without its newline, or None if it is damaged."""
    checksum, _, body = line.partition(b" ")
    if len(checksum) != 8 or body[1:2] != b" ":
        return None
    try:
        right = int(checksum, 16) == zlib.crc32(body)
    except ValueError:
        return None
    return (body[:1], body[2:]) if right else None


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:016d}.wal"


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of the segments in `folder`, ascending."""
    return sorted(int(path.stem) for path in folder.glob("*.wal") if path.stem.isdecimal())


def write_durably(path: Path, text: str) -> None:
    """Replace the file atomically: after a power cut it holds the old text or the new one."""
    aside = path.with_suffix(".new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        left = text.encode()
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    aside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stored_position(folder: Path) -> Position:
    """Return the position in the slot's `position` file; the very start if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return Position.parse((folder / "position").read_text())
    return Position(0, 0)


def read_lines(descriptor: int, offset: int, limit: int, stop: int | None = None) -> tuple[list[bytes], int]:
    """Return whole lines from `offset`, about `limit` bytes at most, and the offset after the last one.

    Nothing from `stop` on is read. After a hole, the first line may be the rest of a damaged record. An empty
    list means that no whole record follows: the log ends here, or its last record is torn.
    """
    data = os.pread(descriptor, limit if stop is None else min(limit, stop - offset), offset)
    zero = data.find(b"\0")
    end = data.rfind(b"\n", 0, zero if zero >= 0 else len(data)) + 1
    if end:
        return data[: end - 1].split(b"\n"), offset + end
    if zero >= 0:
        return _behind_hole(descriptor, offset, stop)
    if len(data) == limit:
        return read_lines(descriptor, offset, limit * 2, stop)
    return [], offset


def _behind_hole(descriptor: int, offset: int, stop: int | None) -> tuple[list[bytes], int]:
    """Return the first whole line after zeros, in the form of `read_lines`."""
    size = os.fstat(descriptor).st_size if stop is None else stop
    rest = os.pread(descriptor, size - offset, offset)
    zero = max(0, rest.find(b"\0"))
    behind = rest[zero:].lstrip(b"\0")
    line, newline, _ = behind.partition(b"\n")
    if not newline:
        return [], offset
    return [line], offset + len(rest) - len(behind) + len(line) + 1


def trim(path: Path) -> None:
    """Free the room after the last whole record of a segment without a writer."""
    end = 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while (found := read_lines(descriptor, end, _READ_BYTES))[0]:
            end = found[1]
    finally:
        os.close(descriptor)
    if path.stat().st_size > end:
        os.truncate(path, end)


def records(path: Path, start: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Yield (kind, payload) of every valid record from byte `start`; damage is logged and skipped."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while True:
            lines, end = read_lines(descriptor, start, _READ_BYTES)
            if not lines:
                break
            for line in lines:
                record = decode(line)
                if record is None:
                    logger.error("usage log: skipped a damaged record in %s before byte %d", path, end)
                else:
                    yield record
            start = end
        if torn := os.pread(descriptor, 64, start).rstrip(b"\0"):
            logger.warning("usage log: %s ends in a torn record at byte %d: %r...", path, start, torn[:20])
    finally:
        os.close(descriptor)

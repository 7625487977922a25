"""Metrics in a file: a process counts by plain stores to mapped memory, and any process can read all files.

    header | float64 cells | index: a line a series | names of adapters

Counts are in the page cache at once, so they outlive a killed process, and the log slot's next owner
continues them: a sum over files never falls. The file's space is allocated at its creation, so that a full
disk cannot break a store.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

FILE: Final = "metrics"
CELLS: Final = 32_768
INDEX_BYTES: Final = 1 << 19
NAMES: Final = 1000
NAME_BYTES: Final = 160
"""Longest name; an engine name has at most 155 bytes."""
ALIVE_SECONDS: Final = 10.0
"""A process's gauges are valid for this long after its last heartbeat."""
MAX_WIDTH: Final = 64
_SPARE: Final = CELLS - MAX_WIDTH
_HEADER: Final = 64
_INDEX: Final = _HEADER + 8 * CELLS
_NAMES: Final = _INDEX + INDEX_BYTES
_SIZE: Final = _NAMES + NAMES * NAME_BYTES
_USED: Final = struct.Struct("=Q")
_BEAT: Final = struct.Struct("=d")
_USED_AT: Final = 32
_BEAT_AT: Final = 40


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a family: `width` cells from `at`."""

    family: str
    labels: str
    at: int
    width: int


class CellFile:
    """One process's metrics.

    Attributes:
        values: the mapped memory, as floats.
        refused: series without room; they are counted in a cell that is never read.
    """

    def __init__(self, path: Path, schema: str) -> None:
        """Continue the file's counts, unless another `schema` wrote it.

        Raises:
            OSError: there is no room, or the folder cannot be written.
        """
        head = _head(schema)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size != _SIZE or os.pread(descriptor, 32, 0) != head:
                os.ftruncate(descriptor, 0)
                os.posix_fallocate(descriptor, 0, _SIZE)
                os.pwrite(descriptor, head, 0)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self.values = memoryview(self._map)[_HEADER:_INDEX].cast("d")
        self.refused = 0
        self._known = {(series.family, series.labels): series for series in _index(self._map)}
        self._next = max((series.at + series.width for series in self._known.values()), default=0)

    def series(self, family: str, labels: str, width: int) -> int:
        """Return the first of a series' cells, which are 0 when it is new."""
        if known := self._known.get((family, labels)):
            return known.at
        line = f"{self._next}\t{width}\t{family}\t{labels}\n".encode()
        used = _USED.unpack_from(self._map, _USED_AT)[0]
        if self._next + width > _SPARE or used + len(line) > INDEX_BYTES:
            self.refused += 1
            return _SPARE
        at, self._next = self._next, self._next + width
        self._map[_INDEX + used : _INDEX + used + len(line)] = line
        # Stored last, so that a concurrent reader sees the whole line or none.
        _USED.pack_into(self._map, _USED_AT, used + len(line))
        self._known[family, labels] = Series(family, labels, at, width)
        return at

    def known(self) -> list[Series]:
        """Return every series of this file, including a former owner's."""
        return list(self._known.values())

    def name(self, slot: int) -> str:
        """Return the name in a slot of the table of names, "" for none."""
        return _name(self._map, slot)

    def rename(self, slot: int, name: str, at: int, width: int) -> None:
        """Give a slot and its cells, from `at`, to another name, with counts of 0."""
        cells = range(at, at + width)
        # NaN first and the first cell last, so that a reader never sees old counts under the new name.
        for cell in cells:
            self.values[cell] = math.nan
        start = _NAMES + slot * NAME_BYTES
        self._map[start : start + NAME_BYTES] = name.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
        for cell in reversed(cells):
            self.values[cell] = 0.0

    def heartbeat(self) -> None:
        """Record that this process is alive."""
        _BEAT.pack_into(self._map, _BEAT_AT, time.monotonic())

    def end(self) -> None:
        """Record that this process is ending; a request that is cut may still be counted."""
        _BEAT.pack_into(self._map, _BEAT_AT, 0.0)


class Snapshot:
    """The file of one process at one moment.

    Attributes:
        process: name of its log slot.
        alive: True if the process had a recent heartbeat.
    """

    def __init__(self, process: str, data: bytes) -> None:
        self.process = process
        self._data = data
        beat = _BEAT.unpack_from(data, _BEAT_AT)[0]
        # The clock of another boot may be ahead of this one's.
        self.alive = beat > 0 and 0 <= time.monotonic() - beat < ALIVE_SECONDS
        self._values = memoryview(data)[_HEADER:_INDEX].cast("d")

    @classmethod
    def all(cls, root: Path, schema: str) -> Iterator[Self]:
        """Yield the files below `root` with the current schema."""
        for path in sorted(root.glob(f"[0-9][0-9][0-9]/{FILE}")):
            data = path.read_bytes()
            if len(data) == _SIZE and data[:32] == _head(schema):
                yield cls(path.parent.name, data)

    def series(self) -> Iterator[tuple[Series, list[float]]]:
        for series in _index(self._data):
            yield series, list(self._values[series.at : series.at + series.width])

    def name(self, slot: int) -> str:
        return _name(self._data, slot)


def _head(schema: str) -> bytes:
    return hashlib.blake2b(f"{_SIZE} {schema}".encode(), digest_size=32).digest()


def _index(data: bytes | mmap.mmap) -> Iterator[Series]:
    used = _USED.unpack_from(data, _USED_AT)[0]
    for line in data[_INDEX : _INDEX + used].decode().split("\n")[:-1]:
        at, width, family, labels = line.split("\t")
        yield Series(family, labels, int(at), int(width))


def _name(data: bytes | mmap.mmap, slot: int) -> str:
    start = _NAMES + slot * NAME_BYTES
    return data[start : start + NAME_BYTES].rstrip(b"\0").decode("utf-8", "replace")

"""Finds the end of a request's body: after its length, or with its last chunk."""

from __future__ import annotations

import re
from typing import Final, Protocol

from gateway.http.server.head import FIELD
from gateway.http.server.limits import HEAD_BYTES

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER: Final = re.compile(FIELD)
_LINE_BYTES: Final = 4096
_BESIDE_BYTES: Final = 1 << 14
"""Most bytes of chunk extensions in one body."""
_TINY_BYTES: Final = 16
_TINY_CHUNKS: Final = 1 << 14
"""More chunks below _TINY_BYTES than this cost too much time for any honest client."""


class MalformedChunks(Exception):
    """The chunks are malformed, so the end of the body is unknown."""


class Body(Protocol):
    """Splits a request's body from the bytes that follow it.

    Attributes:
        done: True once the body has ended.
    """

    done: bool

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Return (the bytes of `data` in the body, the bytes after its end). Raises MalformedChunks."""


class LengthBody:
    """A body of `length` bytes."""

    __slots__ = ("_left", "done")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = not length

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        if len(data) <= self._left:
            self._left -= len(data)
            self.done = not self._left
            return data, b""
        left, self._left, self.done = self._left, 0, True
        return data[:left], data[left:]


class ChunkedBody:
    """A chunked body; extensions and trailers are checked and dropped."""

    __slots__ = ("_beside", "_ends", "_held", "_left", "_tiny", "_trails", "done")

    def __init__(self) -> None:
        self.done = False
        self._held = b""
        """The start of an incomplete line."""
        self._left = 0
        """Remaining bytes of the current chunk."""
        self._ends = False
        """True if the line end after a chunk's data comes next."""
        self._trails = False
        self._beside = self._tiny = 0

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        data, self._held = self._held + data, b""
        parts: list[bytes] = []
        at = 0
        while not self.done:
            if self._left:
                part = data[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                self._ends = True
                parts.append(part)
                if self._left:
                    break
            end = self._line_end(data, at)
            if end < 0:
                self._held = data[at:]
                break
            self._read_line(data[at:end])
            at = end + 2
        return b"".join(parts), data[at:] if self.done else b""

    def _line_end(self, data: bytes, at: int) -> int:
        """Return the line's end, or -1 if the line is incomplete."""
        end = data.find(b"\r\n", at)
        if (len(data) if end < 0 else end) - at > _LINE_BYTES:
            raise MalformedChunks
        return end

    def _read_line(self, line: bytes) -> None:
        if self._ends:
            if line:
                raise MalformedChunks
            self._ends = False
        elif self._trails:
            self.done = not line
            self._count(len(line), HEAD_BYTES)
            if line and _TRAILER.fullmatch(line) is None:
                raise MalformedChunks
        else:
            self._begin_chunk(line)

    def _begin_chunk(self, line: bytes) -> None:
        size = _SIZE.fullmatch(line)
        if size is None:
            raise MalformedChunks
        self._left = int(size[1], 16)
        self._trails = not self._left
        self._count(len(line) - len(size[1]), _BESIDE_BYTES)
        if self._left < _TINY_BYTES:
            self._tiny += 1
            if self._tiny > _TINY_CHUNKS:
                raise MalformedChunks

    def _count(self, beside: int, most: int) -> None:
        self._beside += beside
        if self._beside > most:
            raise MalformedChunks

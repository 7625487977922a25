"""Parses frames of `application/vnd.amazon.eventstream` as they arrive.

    u32 total length | u32 headers' length | u32 CRC-32 of these eight bytes
    headers: u8 name length, name, u8 type, value
    payload
    u32 CRC-32 of everything before it

Numbers are big-endian. Source: "Amazon event stream encoding", Smithy's specification.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

HeaderValue = bool | int | bytes | str

MAX_HEADER_BYTES: Final = 128 << 10
MAX_PAYLOAD_BYTES: Final = 24 << 20
_PRELUDE: Final = struct.Struct(">III")
_CRC: Final = struct.Struct(">I")
_OVERHEAD: Final = _PRELUDE.size + _CRC.size
_INTEGERS: Final = {
    2: struct.Struct(">b"),
    3: struct.Struct(">h"),
    4: struct.Struct(">i"),
    5: struct.Struct(">q"),
}
_TIMESTAMP: Final = 8


class EventStreamError(ValueError):
    """The bytes are no event stream, or were corrupted; all later bytes are void."""


class Message(NamedTuple):
    """One frame. Timestamps are integers in milliseconds, UUIDs 16 bytes."""

    headers: dict[str, HeaderValue]
    payload: bytes


class EventStreamParser:
    """Parses one stream, split at any byte."""

    __slots__ = ("_failure", "_header_bytes", "_headers", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._header_bytes: bytes | None = None
        self._headers: dict[str, HeaderValue] = {}
        self._failure: EventStreamError | None = None

    def feed(self, data: bytes) -> list[Message]:
        """Return the frames that `data` completes.

        Raises:
            EventStreamError: the next frame is invalid. Valid frames before it are returned first, and the
                next call, of `feed` or `end`, raises.
        """
        if self._failure is not None:
            raise self._failure
        messages: list[Message] = []
        try:
            if not self._rest:
                end = self._parse(data, messages)
                self._rest += data[end:]
            else:
                self._rest += data
                end = self._parse(self._rest, messages)
                del self._rest[:end]
        except EventStreamError as error:
            self._failure = error
            if not messages:
                raise
        return messages

    def end(self) -> None:
        """Note the stream's end. Raises EventStreamError if it lies within a frame."""
        if self._failure is not None:
            raise self._failure
        if self._rest:
            raise EventStreamError("the event stream ended within a frame")

    def _parse(self, data: bytes | bytearray, messages: list[Message]) -> int:
        """Append all whole frames to `messages`; return the end of the last one."""
        start, have = 0, len(data)
        while have - start >= _PRELUDE.size:
            total, header_length, prelude_crc = _PRELUDE.unpack_from(data, start)
            if zlib.crc32(data[start : start + 8]) != prelude_crc:
                raise EventStreamError("the checksum of an event-stream frame's prelude is wrong")
            _check_lengths(total, header_length)
            if have - start < total:
                break
            end = start + total - _CRC.size
            if zlib.crc32(data[start:end]) != _CRC.unpack_from(data, end)[0]:
                raise EventStreamError("the checksum of an event-stream frame is wrong")
            body = start + _PRELUDE.size + header_length
            headers = self._read_headers(bytes(data[start + _PRELUDE.size : body]))
            messages.append(Message(headers, bytes(data[body:end])))
            start += total
        return start

    def _read_headers(self, data: bytes) -> dict[str, HeaderValue]:
        """Parse headers once for nearly all frames of a stream, since those have equal headers."""
        if data != self._header_bytes:
            self._headers, self._header_bytes = parse_headers(data), data
        return self._headers


def _check_lengths(total: int, headers: int) -> None:
    if headers > MAX_HEADER_BYTES or total > headers + MAX_PAYLOAD_BYTES + _OVERHEAD:
        raise EventStreamError(f"an event-stream frame of {total} bytes, {headers} of headers, is too large")
    if total < headers + _OVERHEAD:
        raise EventStreamError(f"an event-stream frame of {total} bytes cannot have {headers} of headers")


def parse_headers(data: bytes) -> dict[str, HeaderValue]:
    """Parse headers. Raises EventStreamError for an unknown type, a cut-off header, or a duplicate."""
    headers: dict[str, HeaderValue] = {}
    at = 0
    try:
        while at < len(data):
            raw, at = _take(data, at + 1, data[at])
            name = raw.decode()
            value, at = _value(data, at + 1, data[at])
            if name in headers:
                raise EventStreamError(f"an event-stream frame has the header {name!r} twice")
            headers[name] = value
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise EventStreamError("the headers of an event-stream frame are malformed") from error
    return headers


def _value(data: bytes, at: int, kind: int) -> tuple[HeaderValue, int]:
    if kind in (6, 7):
        length = int.from_bytes(data[at : at + 2])
        raw, at = _take(data, at + 2, length)
        return (raw if kind == 6 else raw.decode()), at
    if kind in (0, 1):
        return kind == 0, at
    if kind == 9:
        return _take(data, at, 16)
    number = _INTEGERS.get(5 if kind == _TIMESTAMP else kind)
    if number is None:
        raise EventStreamError(f"an event-stream frame has a header of the unknown type {kind}")
    return number.unpack_from(data, at)[0], at + number.size


def _take(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if at + length > len(data):
        raise IndexError(length)
    return data[at : at + length], at + length

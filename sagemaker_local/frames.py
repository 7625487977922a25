"""Writes `application/vnd.amazon.eventstream` frames."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

_STRING = 7


def part(payload: bytes) -> bytes:
    """Return a PayloadPart event."""
    headers = {
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
        ":message-type": "event",
    }
    return _frame(headers, payload)


def exception(kind: str, body: dict[str, Any]) -> bytes:
    """Return an exception that ends the stream: `ModelStreamError` or `InternalStreamFailure`."""
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return _frame(headers, json.dumps(body).encode())


def _frame(headers: dict[str, str], payload: bytes) -> bytes:
    lines = b"".join(
        struct.pack(f">B{len(name)}sBH", len(name), name.encode(), _STRING, len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 12 + len(lines) + len(payload) + 4, len(lines))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + lines + payload
    return message + struct.pack(">I", zlib.crc32(message))

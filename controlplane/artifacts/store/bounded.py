"""A stream that ends in an error beyond its limit."""

from __future__ import annotations

from controlplane.artifacts.store.base import ByteStream
from controlplane.errors import InvalidInputError

CHUNK = 1 << 20
"""Bytes read at a time."""


class BoundedStream:
    """Counts the bytes read and refuses more than `limit`."""

    def __init__(self, stream: ByteStream, *, name: str, limit: int) -> None:
        self._stream, self._name, self._limit = stream, name, limit
        self.count = 0

    def read(self, size: int = -1, /) -> bytes:
        """Return exactly `size` bytes until the end, since S3's uploader takes fewer for the end."""
        data = bytearray()
        while size < 0 or len(data) < size:
            wanted = CHUNK if size < 0 else min(size - len(data), CHUNK)
            if not (part := self._stream.read(wanted)):
                break
            data += part
            self.count += len(part)
            if self.count > self._limit:
                raise InvalidInputError(
                    f"{self._name} is larger than the accepted {self._limit} bytes", field="files"
                )
        return bytes(data)

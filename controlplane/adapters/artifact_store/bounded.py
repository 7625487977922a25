"""A stream that ends in an error beyond its limit."""

from __future__ import annotations

from controlplane.adapters.artifact_store.base import ByteStream
from controlplane.errors import InvalidInputError

CHUNK = 1 << 20
"""Bytes read at a time."""


class BoundedStream:
    """Counts what passes and refuses more than `limit` bytes."""

    def __init__(self, stream: ByteStream, *, name: str, limit: int) -> None:
        self._stream, self._name, self._limit = stream, name, limit
        self.count = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(min(size, CHUNK) if size > 0 else CHUNK)
        self.count += len(data)
        if self.count > self._limit:
            raise InvalidInputError(
                f"{self._name} is larger than the {self._limit} bytes that are accepted", field="files"
            )
        return data

"""What an artifact store does. Keys are relative paths with `/`; a folder is a key without its files."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class ByteStream(Protocol):
    """What is read from: no more than a sized read, so that an S3 body serves as well as a file."""

    def read(self, size: int = -1, /) -> bytes: ...


class ArtifactStore(Protocol):
    """Keeps files under keys, in memory bounded by one chunk."""

    def put(self, key: str, stream: ByteStream, *, limit: int) -> int:
        """Stores what `stream` yields and returns its size; on any error nothing stands under `key`.

        Raises:
            InvalidInputError: more than `limit` bytes came.
        """

    def size(self, key: str) -> int | None:
        """Bytes under `key`; None when there is nothing."""

    def open(self, key: str) -> AbstractContextManager[ByteStream]:
        """Opens a stored file for reading from its start."""

    def move(self, source: str, target: str) -> None:
        """Moves a folder. A target that stands already is kept: equal keys hold equal content."""

    def remove(self, folder: str) -> None:
        """Removes a folder and what is in it, if anything."""

    def uri(self, folder: str) -> str:
        """Where others find the folder: `file:///.../` or `s3://.../`."""

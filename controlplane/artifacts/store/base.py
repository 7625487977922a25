"""What an artifact store does. Keys are relative paths with `/`; a folder is a key without its files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class ByteStream(Protocol):
    """What is read from: no more than a sized read, so that an S3 body serves as well as a file."""

    def read(self, size: int = -1, /) -> bytes: ...


class ArtifactStore(Protocol):
    """Keeps files under keys, in memory bounded by one chunk.

    Every call raises UnavailableError when the store does not answer: the same call may succeed later.
    """

    def put(self, key: str, stream: ByteStream, *, limit: int) -> int:
        """Stores what `stream` yields and returns its size; on any error nothing stands under `key`.

        Raises:
            InvalidInputError: more than `limit` bytes came.
        """

    def size(self, key: str) -> int | None:
        """Bytes under `key`; None when there is nothing."""

    def open(self, key: str) -> AbstractContextManager[ByteStream]:
        """Opens a stored file for reading from its start."""

    def copy(self, source: str, target: str, *, progress: Callable[[], None]) -> None:
        """Copies a folder, calling `progress` now and then; the source stays.

        Idempotent: `target` is the address of the content, so one that stands already, whole or in
        part, holds the same.
        """

    def remove_file(self, key: str) -> None:
        """Removes what is under `key`, if anything."""

    def remove(self, folder: str) -> None:
        """Removes a folder and what is in it, if anything."""

    def uri(self, folder: str) -> str:
        """Where others find the folder: `file:///.../` or `s3://.../`."""

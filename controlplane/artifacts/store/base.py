"""The interface of artifact stores. Keys are relative paths with `/`; a folder is a prefix of keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class ByteStream(Protocol):
    """A readable stream with only a sized `read`, so that files and S3 bodies both qualify."""

    def read(self, size: int = -1, /) -> bytes: ...


class ArtifactStore(Protocol):
    """Stores files under keys; memory is bounded by one chunk.

    Every call raises UnavailableError if the store does not answer; a retry may succeed.
    """

    def put(self, key: str, stream: ByteStream, *, limit: int) -> int:
        """Store the stream's content and return its size; after an error nothing is stored under `key`.

        Raises:
            InvalidInputError: the stream exceeds `limit` bytes.
        """

    def size(self, key: str) -> int | None:
        """Return the size in bytes under `key`; None if nothing is stored."""

    def open(self, key: str) -> AbstractContextManager[ByteStream]:
        """Open a stored file for reading."""

    def copy(self, source: str, target: str, *, progress: Callable[[], None]) -> None:
        """Copy a folder, calling `progress` now and then; the source stays.

        Idempotent: `target` is content-addressed, so existing files there are equal.
        """

    def remove_file(self, key: str) -> None:
        """Remove the file under `key`, if any."""

    def remove(self, folder: str) -> None:
        """Remove a folder with its files, if any."""

    def uri(self, folder: str) -> str:
        """Return the folder's URI for other processes: `file:///.../` or `s3://.../`."""

"""Sources of base models' checkpoints. Only staff sets them, so any folder or bucket is allowed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from controlplane.artifacts.store import ByteStream
from controlplane.errors import InvalidInputError


class CheckpointSource(Protocol):
    """The files of one checkpoint, in one folder."""

    @property
    def uri(self) -> str:
        """The normalized URI, as the catalogue stores it."""

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each file by name, without hidden files and subfolders.

        Raises:
            InvalidInputError: the source does not exist, or may not be read.
            UnavailableError: the source does not answer.
        """

    def open(self, name: str) -> AbstractContextManager[ByteStream]:
        """Open a file for reading. Raises as `sizes` does."""

    def read_range(self, name: str, start: int, size: int) -> bytes:
        """Return `size` bytes of a file from byte `start`. Raises as `sizes` does."""


def refusal(message: str) -> InvalidInputError:
    """Return the error for an unusable source."""
    return InvalidInputError(message, field="source")

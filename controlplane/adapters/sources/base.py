"""The sources from which adapters are imported: checked at registration, opened by the validation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, Self
from urllib.parse import SplitResult

from controlplane.artifacts.store import ByteStream
from controlplane.errors import InvalidInputError, RefusedError


class MissingFileError(Exception):
    """The source has no such file. `answer` is the beginning of the HTTP server's response."""

    def __init__(self, name: str, *, answer: bytes = b"") -> None:
        self.answer = answer
        super().__init__(name)


class SourceRefusedError(RefusedError):
    """An HTTP server refuses a file. `answer` is the beginning of its response."""

    def __init__(self, message: str, *, answer: bytes) -> None:
        self.answer = answer
        super().__init__(message)


class Source(Protocol):
    """A folder or an archive with an adapter's files."""

    @property
    def uri(self) -> str:
        """The normalized URI, which is stored with the version; it holds no secret."""

    @property
    def archive(self) -> str:
        """The archive's file name; '' for a folder."""

    def pinned(self) -> Self:
        """Return the source pinned to its present content, such as a commit; itself if it cannot be.

        Raises:
            RefusedError: the source does not exist, or may not be read.
            UnavailableError: it does not answer.
        """

    def open(self, name: str) -> AbstractContextManager[ByteStream]:
        """Open one file, or the archive by its name.

        Raises, here and while it is read:
            MissingFileError: there is no such file.
            RefusedError: it may not be read.
            UnavailableError: the source does not answer.
        """


class WatchedStream:
    """A stream that passes the bytes read to `watch`."""

    def __init__(self, stream: ByteStream, watch: Callable[[bytes], object]) -> None:
        self._stream, self._watch = stream, watch

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._watch(data)
        return data


def is_plain(parts: SplitResult) -> bool:
    """Return True if a URI has no query, fragment, user name or password."""
    return not (parts.query or parts.fragment or parts.username or parts.password)


def bad_uri(uri: str, expected: str) -> InvalidInputError:
    """Return the error for a malformed URI."""
    return InvalidInputError(f"cannot register from {uri[:200]!r}: {expected}", field="uri")

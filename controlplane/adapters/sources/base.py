"""What an adapter is imported from. A source is checked when it is written and opened by the validation."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, Self
from urllib.parse import SplitResult

from controlplane.artifacts.store import ByteStream
from controlplane.errors import InvalidInputError, RefusedError


class MissingFileError(Exception):
    """The source has no such file. `answer` is the beginning of what an HTTP server said to that."""

    def __init__(self, name: str, *, answer: bytes = b"") -> None:
        self.answer = answer
        super().__init__(name)


class SourceRefusedError(RefusedError):
    """An HTTP server will not give a file. `answer` is the beginning of what it said to that."""

    def __init__(self, message: str, *, answer: bytes) -> None:
        self.answer = answer
        super().__init__(message)


class Source(Protocol):
    """One folder, or one archive."""

    @property
    def uri(self) -> str:
        """Its one spelling, as the version keeps it; no secret is in it."""

    @property
    def archive(self) -> str:
        """The archive's file name; '' for a folder."""

    def pinned(self) -> Self:
        """The same content by a name that cannot come to mean another; itself where there is none.

        Raises:
            RefusedError: there is no such source, or it may not be read.
            UnavailableError: it does not answer.
        """

    def open(self, name: str) -> AbstractContextManager[ByteStream]:
        """Opens one file, or the archive by its name.

        Raises, here and while it is read:
            MissingFileError: it is not there.
            RefusedError: it may not be read.
            UnavailableError: the source does not answer.
        """


def is_plain(parts: SplitResult) -> bool:
    """Whether a URI has neither query nor fragment nor user."""
    return not (parts.query or parts.fragment or parts.username or parts.password)


def bad_uri(uri: str, expected: str) -> InvalidInputError:
    """The refusal of a URI that reads like none."""
    return InvalidInputError(f"cannot register from {uri[:200]!r}: {expected}", field="uri")

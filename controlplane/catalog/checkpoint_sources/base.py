"""Where a base model's checkpoint lies. Only staff writes a source, so it may be any folder or bucket."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from controlplane.artifacts.store import ByteStream
from controlplane.errors import InvalidInputError


class CheckpointSource(Protocol):
    """The files of one checkpoint, in one folder."""

    @property
    def uri(self) -> str:
        """Its one spelling, as the catalogue keeps it."""

    def sizes(self) -> dict[str, int]:
        """Bytes of each file by name, hidden ones and subfolders left out.

        Raises:
            InvalidInputError: there is no such place, or it may not be read.
            UnavailableError: it does not answer.
        """

    def open(self, name: str) -> AbstractContextManager[ByteStream]:
        """Opens a file from its start; raises as `sizes` does."""


def refusal(message: str) -> InvalidInputError:
    """What is wrong with a source."""
    return InvalidInputError(message, field="source")

"""A folder of this machine, or of a network file system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.artifacts.store import ByteStream
from controlplane.catalog.checkpoint_sources.base import refusal


class FolderCheckpoint:
    """Files under an absolute path."""

    def __init__(self, folder: Path) -> None:
        """Raises InvalidInputError."""
        if not folder.is_absolute():
            raise refusal(
                f"source must be an absolute folder, s3://bucket/prefix or hf://owner/name@revision,"
                f" got {str(folder)[:200]!r}"
            )
        self._folder = folder

    @property
    def uri(self) -> str:
        return str(self._folder)

    def sizes(self) -> dict[str, int]:
        try:
            files = [path for path in self._folder.iterdir() if path.is_file() and path.name[0] != "."]
            return {path.name: path.stat().st_size for path in files}
        except OSError as error:
            raise refusal(f"cannot read {self._folder}: {error.strerror}") from error

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:
        try:
            with (self._folder / name).open("rb") as stream:
                yield stream
        except OSError as error:
            raise refusal(f"cannot read {self._folder / name}: {error.strerror}") from error

    def read_range(self, name: str, start: int, size: int) -> bytes:
        try:
            with (self._folder / name).open("rb") as stream:
                stream.seek(start)
                return stream.read(size)
        except OSError as error:
            raise refusal(f"cannot read {self._folder / name}: {error.strerror}") from error

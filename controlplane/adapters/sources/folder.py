"""file:///: folders and archives below the operator's import roots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, unquote

from django.conf import settings

from controlplane.adapters.sources.base import MissingFileError, bad_uri, is_plain
from controlplane.artifacts.store import ByteStream
from controlplane.artifacts.uploads.file_names import is_archive
from controlplane.errors import InvalidInputError


class FolderSource:
    """A folder of this machine, or an archive in one."""

    def __init__(self, parts: SplitResult) -> None:
        """Raises InvalidInputError: it does not lie below an import root."""
        if parts.netloc or not is_plain(parts):
            raise bad_uri(parts.geturl(), "write a folder as file:///folder")
        path = Path(unquote(parts.path))
        self.archive = path.name if is_archive(path.name) else ""
        self._folder = _import_folder(path.parent if self.archive else path)
        self.uri = self._folder.as_uri() + "/"
        if self.archive:
            self.uri = (self._folder / self.archive).as_uri()

    def pinned(self) -> Self:
        return self

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:
        try:
            handle = _open_below(self._folder, name)
        except OSError as error:
            raise MissingFileError(name) from error
        with os.fdopen(handle, "rb") as stream:
            yield stream


def _open_below(folder: Path, name: str) -> int:
    """Open a file by its path below a folder; no link in it may lead out of the import root."""
    inner, _, file = name.rpartition("/")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    if not inner:
        return os.open(folder / file, flags)
    parent = os.open(folder / inner, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        return os.open(file, flags, dir_fd=parent)
    finally:
        os.close(parent)


def _import_folder(path: Path) -> Path:
    folder, roots = path.resolve(), settings.GRAFTWORK.import_roots
    if not any(folder.is_relative_to(root) for root in roots):
        raise InvalidInputError(
            f"{path} is not in a folder open for imports of adapters; upload the files instead", field="uri"
        )
    return folder

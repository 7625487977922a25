"""Adapters' files on disk, by content: bounded in bytes, and left clean by a crash."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from worker_engine.errors import AdapterUnavailable
from worker_engine.protocol import ADAPTER_FILES, adapter_digest

_PART: Final = ".part-"


def files_digest(files: Mapping[str, bytes]) -> str:
    """The content identity of an adapter's files by name."""
    return adapter_digest({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})


class AdapterDiskCache:
    """One folder for each adapter, named by its digest; the one read longest ago leaves first.

    Several workers may share it: a reader whose folder another one removes takes that for a miss.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        """Removes what a writer that died left behind."""
        self._folder, self._max_bytes = folder, max_bytes
        for part in folder.glob(f"{_PART}*"):
            with contextlib.suppress(OSError), _locked(part):
                shutil.rmtree(part, ignore_errors=True)

    def __contains__(self, sha256: str) -> bool:
        return (self._folder / sha256).is_dir()

    def read(self, sha256: str) -> dict[str, bytes] | None:
        """The files, if they are here and still are what they were; a copy that rotted is removed."""
        folder = self._folder / sha256
        if not folder.is_dir():
            return None
        with contextlib.suppress(OSError):
            files = {name: (folder / name).read_bytes() for name in ADAPTER_FILES}
            if files_digest(files) == sha256:
                os.utime(folder)
                return files
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def store(self, sha256: str, files: Mapping[str, bytes]) -> None:
        """Written aside and renamed, so that a reader never meets half an adapter.

        Raises:
            AdapterUnavailable: the folder cannot be written to.
        """
        if sum(map(len, files.values())) > self._max_bytes:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=_PART, dir=self._folder))
            with _locked(part):
                for name, data in files.items():
                    (part / name).write_bytes(data)
                try:
                    part.rename(self._folder / sha256)
                except OSError:  # another loader was first
                    shutil.rmtree(part, ignore_errors=True)
        except OSError as error:
            raise AdapterUnavailable(f"cannot write the adapter cache {self._folder}: {error}") from error
        self._prune(keep=sha256)

    def _prune(self, *, keep: str) -> None:
        """Removes those read longest ago until the rest is within the bound."""
        ages: list[tuple[float, int, Path]] = []
        for folder in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if not folder.name.startswith(_PART):
                    ages.append((folder.stat().st_mtime, _nbytes(folder), folder))
        total = sum(nbytes for _, nbytes, _ in ages)
        for _, nbytes, folder in sorted(ages):
            if total > self._max_bytes and folder.name != keep:
                shutil.rmtree(folder, ignore_errors=True)
                total -= nbytes


def _nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which its writer's death gives back. Raises OSError when another holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)

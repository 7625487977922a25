"""Adapter files on disk, by content digest: bounded in bytes, and consistent after a crash."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from contracts.adapters.reference import ADAPTER_FILES, POOLING_FILES, adapter_digest

log = logging.getLogger(__name__)

_PART: Final = ".part-"
_SLACK: Final = 64
"""The folder is scanned once per this share of the bound; workers that share it may each exceed it by that.
"""


def files_digest(files: Mapping[str, bytes]) -> str:
    """Return the content digest of an adapter's files by name."""
    return adapter_digest({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})


class AdapterDiskCache:
    """One folder per adapter, named by its digest; the least recently read one is removed first.

    Several workers may share it: a reader treats a folder removed by another worker as a miss.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        """Remove files left by writers that died."""
        self._folder, self._max_bytes = folder, max_bytes
        self._room = 0
        self.num_failed = 0
        for part in folder.glob(f"{_PART}*"):
            with contextlib.suppress(OSError), _locked(part):
                shutil.rmtree(part, ignore_errors=True)

    def __contains__(self, sha256: str) -> bool:
        return (self._folder / sha256).is_dir()

    def digests(self) -> list[str]:
        """Return the digests of cached adapters, in no order; blocks while listing the folder."""
        with contextlib.suppress(OSError), os.scandir(self._folder) as folders:
            return [folder.name for folder in folders if not folder.name.startswith(_PART)]
        return []

    def read(self, sha256: str) -> dict[str, bytes] | None:
        """Return the files if they are cached and intact; a corrupted copy is removed."""
        folder = self._folder / sha256
        if not folder.is_dir():
            return None
        with contextlib.suppress(OSError):
            names = (*ADAPTER_FILES, *(name for name in POOLING_FILES if (folder / name).is_file()))
            files = {name: (folder / name).read_bytes() for name in names}
            if files_digest(files) == sha256:
                os.utime(folder)
                return files
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def store(self, sha256: str, files: Mapping[str, bytes]) -> None:
        """Store files atomically, so that a reader never sees a partial adapter.

        A folder that cannot be written, such as on a full disk, fails no request: `num_failed` counts it, the
        log says why, and the adapter is fetched again when it is next needed.
        """
        if (nbytes := sum(map(len, files.values()))) > self._max_bytes:
            return
        try:
            self._write(sha256, files)
            self._room -= nbytes
            if self._room < 0:
                self._prune(keep=sha256)
        except OSError as error:
            self.num_failed += 1
            log.warning("cannot keep an adapter's files in %s: %s", self._folder, error)

    def _write(self, sha256: str, files: Mapping[str, bytes]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=_PART, dir=self._folder))
        try:
            with _locked(part):
                for name, data in files.items():
                    (part / name).parent.mkdir(exist_ok=True)
                    (part / name).write_bytes(data)
                with contextlib.suppress(OSError):  # another loader was first
                    part.rename(self._folder / sha256)
        finally:
            # It is there no longer, unless writing it failed or was of no use.
            shutil.rmtree(part, ignore_errors=True)

    def _prune(self, *, keep: str) -> None:
        """Remove the least recently read adapters until the rest is within the bound, plus a margin.

        The margin covers the stores until the next scan: with 700 folders a scan took half of a load's time.
        """
        held = sorted(self._held())
        total = sum(nbytes for _, nbytes, _ in held)
        beyond = len(held) // _SLACK
        for _, nbytes, name in held if total > self._max_bytes else ():
            if total <= self._max_bytes:
                if not beyond:
                    break
                beyond -= 1
            if name != keep:
                shutil.rmtree(self._folder / name, ignore_errors=True)
                total -= nbytes
        self._room = min(self._max_bytes - total, self._max_bytes // _SLACK)

    def _held(self) -> Iterator[tuple[float, int, str]]:
        """Return, per adapter: time of its last read, its bytes, its folder's name."""
        with os.scandir(self._folder) as folders:
            for folder in folders:
                # One that another worker is removing is none.
                with contextlib.suppress(OSError):
                    if not folder.name.startswith(_PART):
                        yield folder.stat().st_mtime, _nbytes(folder.path), folder.name


def _nbytes(folder: str) -> int:
    with os.scandir(folder) as files:
        return sum(file.stat().st_size for file in files)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which is freed when its owner dies. Raises OSError when another process holds
    it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)

"""Artifacts in a folder of this machine, or of a network file system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.artifacts.store.base import ByteStream
from controlplane.artifacts.store.bounded import CHUNK, BoundedStream


class LocalStore:
    """Keys are paths below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, stream: ByteStream, *, limit: int) -> int:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        bounded = BoundedStream(stream, name=path.name, limit=limit)
        # Outside the try: an existing file is another writer's and must not be unlinked.
        with path.open("xb") as target:
            try:
                while chunk := bounded.read(CHUNK):
                    target.write(chunk)
                target.flush()
                os.fsync(target.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        return bounded.count

    def size(self, key: str) -> int | None:
        path = self._root / key
        return path.stat().st_size if path.is_file() else None

    @contextmanager
    def open(self, key: str) -> Iterator[ByteStream]:
        with (self._root / key).open("rb") as stream:
            yield stream

    def copy(self, source: str, target: str, *, progress: Callable[[], None]) -> None:
        origin, path = self._root / source, self._root / target
        # Copied to a temporary folder and renamed, so that readers never see a partial one. It is named
        # after the source, so that a new attempt replaces the leftovers of a failed one.
        part = path.with_name(f".{origin.name}")
        shutil.rmtree(part, ignore_errors=True)
        files = [item for item in origin.rglob("*") if item.is_file()]
        if not files:
            raise FileNotFoundError(f"{origin} was removed, or has no files")
        part.mkdir(parents=True)
        for file in files:
            copy = part / file.relative_to(origin)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, copy)
            except OSError:  # a file system without hard links
                shutil.copyfile(file, copy)
            progress()
        try:
            part.rename(path)
        except OSError:
            # The same content exists already: a rename onto a non-empty folder fails.
            shutil.rmtree(part)
            if not path.is_dir():
                raise

    def remove_file(self, key: str) -> None:
        (self._root / key).unlink(missing_ok=True)

    def remove(self, folder: str) -> None:
        if (self._root / folder).exists():
            shutil.rmtree(self._root / folder)

    def uri(self, folder: str) -> str:
        return (self._root / folder).as_uri() + "/"

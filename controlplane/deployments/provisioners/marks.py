"""What has happened to copies of this host, as empty files beside their logs, where the next one finds it."""

from __future__ import annotations

import shutil
import time
from enum import StrEnum
from pathlib import Path
from typing import Final

_TAIL_BYTES: Final = 1500
_CRASHES_KEPT: Final = 100


class Mark(StrEnum):
    STARTED = "started"
    READY = "ready"
    STOPPING = "stopping"


class Marks:
    """Of one deployment's copies, by their names. The first time that a mark is set stands."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, name: str, mark: Mark) -> None:
        if self.age(name, mark) is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path(name, mark).touch()

    def age(self, name: str, mark: Mark) -> float | None:
        """Seconds since it was set; None when it is not."""
        try:
            return max(0.0, time.time() - self._path(name, mark).stat().st_mtime)
        except FileNotFoundError:
            return None

    def has_crashed(self, name: str) -> bool:
        """Of a copy that is not there: whether it has served, and nobody asked it to end."""
        return self.age(name, Mark.READY) is not None and self.age(name, Mark.STOPPING) is None

    def crashes(self, name: str, *, within: float) -> int:
        """How many of this name were cleared away after they had crashed, in so many seconds."""
        try:
            moments = self._log_of_crashes(name).read_text().split()
        except FileNotFoundError:
            return 0
        return sum(float(at) > time.time() - within for at in moments[-_CRASHES_KEPT:])

    def clear(self, name: str) -> None:
        """Forgets the copy before this one of the same name, but that it crashed."""
        if self.has_crashed(name):
            with self._log_of_crashes(name).open("a") as file:
                file.write(f"{time.time():.0f}\n")
        for mark in Mark:
            self._path(name, mark).unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        """Where the copy's output goes."""
        return self._folder / f"{name}.log"

    def log_tail(self, name: str) -> str:
        """The end of its output; "" for none."""
        try:
            return self.log(name).read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def any(self) -> bool:
        """Whether there is a folder of theirs."""
        return self._folder.exists()

    def remove_all(self) -> None:
        """Takes the folder away, with logs and adapters' files."""
        shutil.rmtree(self._folder)

    def _log_of_crashes(self, name: str) -> Path:
        return self._folder / f"{name}.crashes"

    def _path(self, name: str, mark: Mark) -> Path:
        return self._folder / f"{name}.{mark}"

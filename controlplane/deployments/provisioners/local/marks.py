"""Marks: events of this host's copies, stored as empty files next to their logs."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from controlplane.platform.sealing import seal, unseal

_TAIL_BYTES: Final = 1500
_CRASHES_KEPT: Final = 100
LOG_BYTES: Final = 16 << 20
"""Size beyond which a copy's log is emptied, after its end has replaced the older log beside it."""


class Mark(StrEnum):
    STARTED = "started"
    READY = "ready"
    STOPPING = "stopping"


class Marks:
    """Marks of one deployment's copies, by copy name. Setting a mark again keeps its first time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, name: str, mark: Mark) -> None:
        if self.age(name, mark) is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path(name, mark).touch()

    def age(self, name: str, mark: Mark) -> float | None:
        """Return the seconds since the mark was set; None if it is not set."""
        try:
            return max(0.0, time.time() - self._path(name, mark).stat().st_mtime)
        except FileNotFoundError:
            return None

    def has_crashed(self, name: str) -> bool:
        """Return True if a missing copy had been ready and was not asked to stop."""
        return self.age(name, Mark.READY) is not None and self.age(name, Mark.STOPPING) is None

    def crashes(self, name: str, *, within: float) -> int:
        """Return how many crashes of this name `clear` recorded in the last `within` seconds."""
        try:
            moments = self._log_of_crashes(name).read_text().split()
        except FileNotFoundError:
            return 0
        return sum(float(at) > time.time() - within for at in moments[-_CRASHES_KEPT:])

    def clear(self, name: str) -> None:
        """Delete the marks of the previous copy of this name; record it if it crashed."""
        if self.has_crashed(name):
            with self._log_of_crashes(name).open("a") as file:
                file.write(f"{time.time():.0f}\n")
        for mark in Mark:
            self._path(name, mark).unlink(missing_ok=True)

    def new_token(self, name: str) -> str:
        """Make and store the bearer token of the copy that is about to start, sealed."""
        token = secrets.token_urlsafe(32)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._token_file(name).write_text(seal(token, place=self._token_place(name)))
        return token

    def token(self, name: str) -> str:
        """Return the copy's bearer token; "" if there is none."""
        try:
            return unseal(self._token_file(name).read_text(), place=self._token_place(name))
        except FileNotFoundError:
            return ""

    def set_session(self, name: str, session: int) -> None:
        """Store the session of the copy's processes, and the run of this host in which it has the number."""
        self._session_file(name).write_text(f"{_host_run()} {session}")

    def session(self, name: str) -> int | None:
        """Return the session of the last copy of this name; None without one in this run of the host."""
        try:
            run, _, number = self._session_file(name).read_text().rpartition(" ")
        except FileNotFoundError:
            return None
        return int(number) if run == _host_run() and number.isdecimal() else None

    def sessions(self) -> dict[str, int | None]:
        """Return the session of each copy that was started, by name."""
        return {path.stem: self.session(path.stem) for path in self._folder.glob("*.session")}

    def clear_session(self, name: str) -> None:
        """Forget a session that has ended, since another may get its number."""
        self._session_file(name).unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        """Return the path of the copy's output."""
        return self._folder / f"{name}.log"

    def log_tail(self, name: str) -> str:
        """Return the end of the copy's output; "" without one."""
        try:
            return _end_of(self.log(name), _TAIL_BYTES).decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def bound_log(self, name: str) -> None:
        """Move the end of a log beyond LOG_BYTES to `<name>.log.1`, and empty it.

        The process holds the file open for appending, so the file stays in its place.
        """
        path = self.log(name)
        with suppress(FileNotFoundError):
            if path.stat().st_size > LOG_BYTES:
                older = path.with_name(f"{path.name}.1")
                older.unlink(missing_ok=True)
                older.touch(0o600)
                older.write_bytes(_end_of(path, LOG_BYTES))
                os.truncate(path, 0)

    def any(self) -> bool:
        """Return True if the deployment's folder exists."""
        return self._folder.exists()

    def remove_all(self) -> None:
        """Delete the folder with the logs and adapters' files."""
        shutil.rmtree(self._folder)

    def _session_file(self, name: str) -> Path:
        return self._folder / f"{name}.session"

    def _token_file(self, name: str) -> Path:
        return self._folder / f"{name}.token"

    def _token_place(self, name: str) -> str:
        return f"copy {self._folder.name}/{name}"

    def _log_of_crashes(self, name: str) -> Path:
        return self._folder / f"{name}.crashes"

    def _path(self, name: str, mark: Mark) -> Path:
        return self._folder / f"{name}.{mark}"


def _end_of(path: Path, size: int) -> bytes:
    """Return the last bytes of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read(size)


def _host_run() -> str:
    """Return the boot and container that process numbers belong to; "" where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""

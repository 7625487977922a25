"""Slots of the usage log: folders that one process holds, and that others find after its end."""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.usage.wal_records import segment_numbers, sync_folder, write_durably

SLOTS: Final = 256
_ID: Final = re.compile(r"[0-9a-f]{32}")


class Slot:
    """A log folder that only this process holds, until `release`."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock = lock
        self.id = _identity(folder)

    @classmethod
    def hold(cls, folder: Path) -> Slot | None:
        """Return the slot, or None if another process holds it."""
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            for above in (folder.parent, folder.parent.parent):
                sync_folder(above)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        try:
            return cls(folder, lock)
        except OSError:
            os.close(lock)
            raise

    def release(self) -> None:
        os.close(self._lock)


def _identity(folder: Path) -> str:
    """Return the slot's own id. Slots with equal ids would count each other's events as shipped."""
    path = folder / "id"
    if not path.exists() or _ID.fullmatch(path.read_text("utf-8", "replace")) is None:
        write_durably(path, uuid.uuid4().hex)
    return path.read_text()


def claim(root: Path) -> Slot:
    """Return the first slot below `root` that no process holds."""
    for number in range(SLOTS):
        if slot := Slot.hold(root / f"{number:03d}"):
            return slot
    raise RuntimeError(f"all {SLOTS} write-ahead log slots below {root} are held by running processes")


def abandoned(root: Path) -> Iterator[Slot]:
    """Yield slots with unshipped segments whose process is gone (fewer processes now, or a crash)."""
    for folder in sorted(root.glob("[0-9][0-9][0-9]")):
        if segment_numbers(folder) and (slot := Slot.hold(folder)):
            yield slot

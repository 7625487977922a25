"""Copies a checkpoint's files and checks that they did not change while they were read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from contracts.recipes.model_facts import Checkpoint, sha256_of
from contracts.recipes.progress import Code, JobError, Reporter

_BLOCK: Final = 4 << 20


def copy_files(folder: Path, source: Checkpoint, target: Path, reporter: Reporter) -> None:
    """Copy each file of `source` from `folder` unless the target has a correct copy.

    Raises:
        JobError: source_changed, if a file's digest differs from the one in `source`.
    """
    target.mkdir(parents=True, exist_ok=True)
    done = 0
    for name, (size, sha256) in source.files.items():
        goal = target / name
        if not (goal.is_file() and goal.stat().st_size == size and sha256_of(goal) == sha256):
            part = target / f".{name}.part"
            if _copied(folder / name, part, done / source.size, size / source.size, reporter) != sha256:
                part.unlink()
                raise source_changed(folder / name)
            os.replace(part, goal)
        done += size
        reporter.progress(done / source.size, f"copied {name}")
    for partial in target.glob(".*.part"):
        partial.unlink()


def source_changed(path: Path) -> JobError:
    """Return the error for a file that changed while the job read it."""
    return JobError(
        Code.SOURCE_CHANGED, f"{path} changed while the job read it: start it again when it is whole"
    )


def _copied(source: Path, target: Path, done: float, share: float, reporter: Reporter) -> str:
    """Copy a file and return its hex SHA-256."""
    digest, copied, size = hashlib.sha256(), 0, max(source.stat().st_size, 1)
    with source.open("rb") as file, target.open("wb") as out:
        while block := file.read(_BLOCK):
            digest.update(block)
            out.write(block)
            copied += len(block)
            reporter.progress(min(done + share * copied / size, 0.999), f"copying {source.name}")
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()

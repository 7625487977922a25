"""A job's output folder: its lock, its finished steps, and its lineage once it is complete.

.lock           held by the process that works on it
.job/state.json identity, versions and finished steps, until it is complete
checkpoint/     what the worker serves
compiled/       code and packed weights, where the recipe asks for them
lineage.json    written last: its presence says that the folder is complete
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from contracts.recipes.model_facts import files_digest, sha256_of
from contracts.recipes.progress import Code, JobError

LINEAGE: Final = "lineage.json"
PARTS: Final = ("checkpoint", "compiled")
_STATE: Final = Path(".job") / "state.json"


class OutputFolder:
    """One job's folder, locked for the lifetime of the process."""

    def __init__(self, path: Path, identity: Mapping[str, Any], versions: Mapping[str, Any]) -> None:
        """Use `open` instead."""
        self.path, self._identity, self._versions = path, dict(identity), dict(versions)
        self._steps: dict[str, Any] = {}

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: Path, identity: Mapping[str, Any], versions: Mapping[str, Any], log: Callable[[str], None]
    ) -> Iterator[OutputFolder]:
        """Create the folder, or resume the job in it.

        Raises:
            JobError: busy, or output_exists where it holds other content than this job's output.
        """
        if path.exists() and not path.is_dir():
            raise JobError(Code.OUTPUT_EXISTS, f"{path} is a file: choose another --output")
        fresh = not path.exists() or not any(path.iterdir())
        ours = any((path / name).exists() for name in (".lock", LINEAGE, _STATE))
        if not fresh and not ours:
            raise JobError(Code.OUTPUT_EXISTS, f"{path} holds other files: choose another --output")
        path.mkdir(parents=True, exist_ok=True)
        with (path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobError(Code.BUSY, f"another process works on {path}") from None
            folder = cls(path, identity, versions)
            folder._take_up(log)
            yield folder

    def _take_up(self, log: Callable[[str], None]) -> None:
        try:
            found = json.loads((self.path / _STATE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        if found["identity"] != self._identity:
            raise JobError(
                Code.OUTPUT_EXISTS,
                f"{self.path} holds the unfinished output of another order: "
                "choose another --output, or delete it",
            )
        if found["versions"] != self._versions:
            log("software changed since this job began: it begins anew")
            self._forget_parts()
            return
        self._steps = found["steps"]
        if self._steps:
            log(f"going on after {', '.join(self._steps)}")

    def begin(self) -> None:
        """Record the job's identity before any work, so that a killed run's files can be attributed to it."""
        if not (self.path / _STATE).exists():
            # Parts without a recorded identity have an unknown owner.
            self._forget_parts()
        self._write_state()

    def _forget_parts(self) -> None:
        for part in (*PARTS, ".checkpoint.quantizing"):
            shutil.rmtree(self.path / part, ignore_errors=True)

    def finished(self) -> Mapping[str, Any] | None:
        """Return the lineage of a complete folder after verifying its files; None while it is incomplete.

        Raises:
            JobError: output_exists, of another order; output_damaged, with the file's name.
        """
        try:
            lineage: dict[str, Any] = json.loads((self.path / LINEAGE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise JobError(
                Code.OUTPUT_DAMAGED, f"{self.path / LINEAGE} is damaged: delete {self.path}"
            ) from error
        if lineage["identity"] != self._identity:
            raise JobError(
                Code.OUTPUT_EXISTS, f"{self.path} holds the output of another order: choose another --output"
            )
        for name, (_, sha256) in lineage["files"].items():
            file = self.path / name
            if not file.is_file() or sha256_of(file) != sha256:
                raise JobError(
                    Code.OUTPUT_DAMAGED,
                    f"{file} is missing or not what was written: delete {self.path} to make it anew",
                )
        return lineage

    def done(self, step: str) -> Any:
        """Return the record of a finished step; None if it is not finished, or its files are missing."""
        fields = self._steps.get(step)
        if fields is None:
            return None
        sizes = fields["files"].items()
        if all(
            (self.path / name).is_file() and (self.path / name).stat().st_size == size
            for name, (size, _) in sizes
        ):
            return fields
        del self._steps[step]
        return None

    def record(self, step: str, folder: str | None = None, **fields: Any) -> None:
        """Record a finished step and all files under `folder`, which are synced to disk first."""
        files = self._digests(folder) if folder else {}
        self._steps[step] = {"files": files, **fields}
        self._write_state()

    def _write_state(self) -> None:
        state = {"identity": self._identity, "versions": self._versions, "steps": self._steps}
        (self.path / _STATE).parent.mkdir(exist_ok=True)
        write_json(self.path / _STATE, state)

    def _digests(self, folder: str) -> dict[str, tuple[int, str]]:
        found = {}
        for path in sorted((self.path / folder).rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                found[str(path.relative_to(self.path))] = (path.stat().st_size, sha256_of(path))
        return found

    def finish(self, **fields: Any) -> Mapping[str, Any]:
        """Write the lineage, which completes the folder, and delete the step records."""
        files = {name: size for step in self._steps.values() for name, size in step["files"].items()}
        lineage = {
            "version": 1,
            "digest": files_digest({name: sha256 for name, (_, sha256) in files.items()}),
            "identity": self._identity,
            "versions": self._versions,
            "files": files,
            **fields,
        }
        write_json(self.path / LINEAGE, lineage)
        shutil.rmtree(self.path / ".job", ignore_errors=True)
        return lineage


def write_json(path: Path, value: object) -> None:
    """Write a file atomically and durably: readers see the old or the new content."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=".", delete=False, encoding="utf-8"
    ) as part:
        try:
            json.dump(value, part, indent=1, ensure_ascii=False)
            part.write("\n")
            part.flush()
            os.fsync(part.fileno())
            os.chmod(part.name, 0o644)
            os.replace(part.name, path)
        except BaseException:
            os.unlink(part.name)
            raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

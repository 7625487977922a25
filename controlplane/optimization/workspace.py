"""Working folders of jobs on a host: one locked folder per job, which later attempts reuse."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from django.conf import settings

from controlplane.catalog.checkpoint_sources import CheckpointSource, checkpoint_source
from controlplane.catalog.models import BaseModel
from controlplane.errors import InvalidInputError, UnavailableError
from controlplane.optimization.models import OptimizationJob, Work

_CHUNK: Final = 4 << 20
LOG: Final = "log"
OUTPUT: Final = "output"
_TAIL_BYTES: Final = 8192


class HeldError(Exception):
    """Another process of this host uses these files, or this device."""


class FileLock:
    """An advisory lock that is held as long as any process has its descriptor open.

    A subprocess that is given the descriptor keeps it when its parent is killed: nobody works beside it.
    """

    def __init__(self, path: Path) -> None:
        """Raises HeldError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.fd)
            raise HeldError(str(path)) from None

    def close(self) -> None:
        """Release the lock; a process that inherited the descriptor keeps it."""
        os.close(self.fd)


def root() -> Path:
    """Return this host's root folder of all jobs."""
    return Path(settings.GRAFTWORK.optimization_dir)


def host_lock(name: str) -> FileLock:
    """Of something that this host has, such as its CPU: several hosts may share one `root`.

    Raises:
        HeldError: somebody on this host has it.
    """
    return FileLock(root() / f"{name}-{_host()}.lock")


def _host() -> str:
    """Return an id shared by all containers of a host, and by no other host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def work_folder(work: Work) -> Path:
    """Return the work's folder. A job's is named by its identity, so that a repeated job resumes there."""
    if isinstance(work, OptimizationJob):
        return root() / "jobs" / work.identity[:32]
    return root() / "comparisons" / str(work.pk)


def work_forget(work: Work) -> None:
    """Remove the job's folder, unless a process uses it."""
    folder = work_folder(work)
    if not folder.exists():
        return
    try:
        lock = FileLock(folder / "lock")
    except HeldError:
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.close()


def log_tail(folder: Path) -> str:
    """Return the end of the processes' log, without NUL, which PostgreSQL does not accept."""
    try:
        with (folder / LOG).open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            size = stream.tell()
            stream.seek(max(0, size - _TAIL_BYTES))
            data = stream.read()
    except FileNotFoundError:
        return ""
    text = data.decode(errors="replace").replace("\0", "\ufffd")
    return text.split("\n", 1)[-1] if size > _TAIL_BYTES else text


def checkpoint_folder(
    base_model: BaseModel, source: str, digest: str, *, heartbeat: Callable[[], None]
) -> Path:
    """A folder of this host that holds a checkpoint: its own, or a copy of what lies in a bucket or a hub.

    Args:
        digest: names the copy, which later works find again.
        heartbeat: called now and then while bytes come.

    Raises:
        InvalidInputError: it is not there, or not what its digests say.
        UnavailableError: the source does not answer, or another work is copying it.
    """
    found = checkpoint_source(source)
    sizes = found.sizes()
    files = base_model.files.all() if source == base_model.source else ()
    known = {item.name: item.size for item in files}
    if known and known != sizes:
        changed = sorted(name for name in {*known, *sizes} if known.get(name) != sizes.get(name))
        raise InvalidInputError(
            f"{source} was changed since its digests were taken ({changed[0]}): have it read again",
            field="source",
        )
    if source.startswith("/"):
        return Path(source)
    folder = root() / "checkpoints" / digest
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # Works on several GPUs may begin at once: two that write one file would each take the other's half.
        lock = FileLock(folder / ".lock")
    except HeldError:
        raise UnavailableError(f"another job is copying {source} to this host") from None
    with closing(lock):
        os.utime(folder)
        digests = {item.name: item.sha256 for item in files}
        for name, size in sorted(sizes.items()):
            path = folder / name
            if not (path.exists() and path.stat().st_size == size):
                _copy(found, path, size, digests.get(name), heartbeat)
    return folder


def _copy(
    source: CheckpointSource, path: Path, size: int, sha256: str | None, heartbeat: Callable[[], None]
) -> None:
    """One file, aside and renamed; what could not be finished leaves nothing. `sha256` None: not known."""
    part, digest = path.with_name(f".{path.name}.part"), hashlib.sha256()
    try:
        with source.open(path.name) as stream, part.open("wb") as target:
            while data := stream.read(_CHUNK):
                target.write(data)
                digest.update(data)
                heartbeat()
            target.flush()
            os.fsync(target.fileno())
            copied = target.tell()
        if copied != size or sha256 not in (None, digest.hexdigest()):
            raise InvalidInputError(
                f"{source.uri}: {path.name} is not what its digest was taken of ({copied} of {size} bytes):"
                " have it read again",
                field="source",
            )
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)

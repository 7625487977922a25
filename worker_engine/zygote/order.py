"""The message that requests a worker from the zygote on a Unix socket. Stdlib only.

The caller's standard streams are sent along. The first answer has the new process's id and pidfd, or why it
was refused; the last one has the exit status. The worker runs while the caller holds the connection, so
killing the caller kills its worker.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

MAX_BYTES: Final = 128 << 10
"""Size of a message: arguments and environment of one process."""
STREAMS: Final = (0, 1, 2)
READ_AT_LOAD: Final = (
    "ATEN_",
    "DNNL_",
    "GLIBC_",
    "GOMP_",
    "GRAFTWORK_WORKER_CACHE_DIR",
    "GRAFTWORK_WORKER_NATIVE",
    "KMP_",
    "LANG",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTHON",
    "THP_",
    "TORCH",
    "TRITON_",
    "TZ",
)
"""Prefixes of variables that libraries read at load time, which is too early for a fork to change."""


@dataclass(frozen=True, slots=True)
class Order:
    """A request for one worker.

    Attributes:
        arguments: `python -m worker_engine`'s.
        folder: its working folder.
        cores: CPUs that it may use.
        code: `code_digest()` of the caller.
        began: when the caller started, by CLOCK_BOOTTIME.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    cores: Sequence[int]
    umask: int
    code: str
    began: float

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode("utf-8", "surrogateescape")

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """Parse a message. Raises ValueError if `encode` has not written it."""
        try:
            return cls(**json.loads(message.decode("utf-8", "surrogateescape")))
        except TypeError as error:
            raise ValueError(f"no order: {error}") from error


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return the names of variables that are read at load time and differ."""
    return sorted(
        name
        for name in ours.keys() | theirs.keys()
        if name.startswith(READ_AT_LOAD) and ours.get(name) != theirs.get(name)
    )


def code_digest() -> str:
    """Hash the paths, sizes and times of the product's modules, to reject a zygote of other code."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256(f"{os.path.realpath('/proc/self/exe')}\0".encode())
    for package in ("contracts", "kernels", "worker_engine"):
        for path in sorted((root / package).rglob("*.py")):
            stat = path.stat()
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()

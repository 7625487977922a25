"""What whoever wants a worker tells the zygote, as one message on a Unix socket. Stdlib only.

The caller's standard streams go with it. The answer is one message with the new process's id and a
descriptor of it, or why there is none; a last one tells the exit status. While the caller holds the
connection the worker runs; a caller that is killed takes its worker with it.
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
"""Of a message: arguments and environment of one process."""
STREAMS: Final = (0, 1, 2)
READ_AT_LOAD: Final = (
    "ATEN_", "DNNL_", "GLIBC_", "GOMP_", "GRAFTWORK_WORKER_CACHE_DIR", "GRAFTWORK_WORKER_NATIVE", "KMP_",
    "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHON", "THP_", "TORCH",
    "TRITON_", "TZ",
)  # fmt: skip
"""Beginnings of variables that libraries read while they are loaded: a fork is too late for others."""


@dataclass(frozen=True, slots=True)
class Order:
    """One worker that is asked for.

    Attributes:
        arguments: `python -m worker_engine`'s.
        folder: its working folder.
        cores: CPUs that it may use.
        code: `code_digest()` of the caller.
        began: when the caller started, of CLOCK_BOOTTIME.
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
        """Raises ValueError for what `encode` has not written."""
        try:
            return cls(**json.loads(message.decode("utf-8", "surrogateescape")))
        except TypeError as error:
            raise ValueError(f"no order: {error}") from error


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Names of variables that are read at load and not the same in both."""
    return sorted(
        name
        for name in ours.keys() | theirs.keys()
        if name.startswith(READ_AT_LOAD) and ours.get(name) != theirs.get(name)
    )


def code_digest() -> str:
    """Of paths, sizes and times of the product's own modules: a zygote of other code is of no use."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256(f"{os.path.realpath('/proc/self/exe')}\0".encode())
    for package in ("contracts", "kernels", "worker_engine"):
        for path in sorted((root / package).rglob("*.py")):
            stat = path.stat()
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()

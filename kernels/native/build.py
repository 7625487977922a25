"""Compiles kernels.cpp where there is a compiler and a CPU for it, and keeps what came out.

`python kernels/native/build.py FOLDER` compiles into a cache folder, for images without a compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

SOURCE: Final = Path(__file__).with_name("kernels.cpp")
HEADERS: Final = tuple(sorted(Path(__file__).parent.glob("*.h")))
FLAGS: Final = (
    "-std=c++20", "-O3", "-fno-math-errno", "-pthread", "-fPIC", "-shared", "-w",
    "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mfma",
)  # fmt: skip
"""The instructions by name, not `-march=native`: a cache folder may be shared by unlike machines."""
_SECONDS: Final = 120


def load() -> ctypes.CDLL | None:
    """The library, compiled at most once per source and flags; None where it cannot be, and why is logged.

    GRAFTWORK_WORKER_NATIVE=0 turns it off; GRAFTWORK_WORKER_CACHE_DIR names the cache folder, by default
    ~/.cache/graftwork.
    """
    if os.environ.get("GRAFTWORK_WORKER_NATIVE") == "0":
        return None
    import torch

    if not torch.cpu._is_avx512_bf16_supported():
        log.info("no AVX-512 BF16 on this CPU: decoding takes PyTorch's operations")
        return None
    try:
        root = os.environ.get("GRAFTWORK_WORKER_CACHE_DIR") or Path.home() / ".cache" / "graftwork"
        return ctypes.CDLL(str(library(Path(root))))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        log.warning("the native CPU kernels are not used, decoding will be slower: %s", error)
        return None


def library(root: Path) -> Path:
    """The compiled file in a cache folder.

    Raises:
        OSError, RuntimeError, subprocess.SubprocessError: it is not there and cannot be compiled.
    """
    parts = [*(path.read_bytes() for path in (SOURCE, *HEADERS)), *(flag.encode() for flag in FLAGS)]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = root / "native"
    target = folder / f"{key}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _compile(folder, target)
    return target


def _compile(folder: Path, target: Path) -> None:
    """Written aside and renamed, so that another process never loads half a library."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise RuntimeError("there is no C++ compiler (g++, clang++ or $CXX)")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        part = Path(scratch) / target.name
        command = [compiler, *FLAGS, "-o", str(part), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{compiler} failed: {done.stderr.strip()[-400:]}")
        part.rename(target)


if __name__ == "__main__":
    print(library(Path(sys.argv[1])))

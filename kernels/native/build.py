"""Compiles kernels.cpp where a compiler and a suitable CPU exist, and caches the result.

`python kernels/native/build.py FOLDER` compiles for every kind of CPU into a cache folder, for images without
a compiler.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

SOURCE: Final = Path(__file__).with_name("kernels.cpp")
HEADERS: Final = tuple(sorted(Path(__file__).parent.glob("*.h")))
FLAGS: Final = ("-std=c++20", "-O3", "-fno-math-errno", "-pthread", "-fPIC", "-shared", "-w", "-mfma")
_AVX512: Final = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
INSTRUCTIONS: Final = {
    "avx512_bf16": (*_AVX512, "-mavx512bf16"),
    "avx512": _AVX512,
    "avx2": ("-mavx2", "-mf16c"),
}
"""Fastest first. Explicit flags, not `-march=native`, since machines with different CPUs may share a cache
folder.
"""
_SECONDS: Final = 600
"""Compiling takes ten seconds of CPU time; a machine that starts many workers at once needs longer."""


def supported() -> tuple[str, ...]:
    """Return the `INSTRUCTIONS` that this CPU supports, fastest first."""
    import torch

    found = torch.cpu.get_capabilities()
    avx512 = all(found.get(f"avx512_{part}") for part in ("f", "bw", "dq", "vl"))
    has = {
        "avx512_bf16": avx512 and found.get("avx512_bf16"),
        "avx512": avx512,
        "avx2": found.get("avx2") and found.get("f16c"),
    }
    return tuple(name for name in INSTRUCTIONS if has[name] and found.get("fma3"))


def instruction_set() -> str | None:
    """Return the set of instructions to compile for, or None for PyTorch's operations.

    The default is the fastest that the CPU has; GRAFTWORK_WORKER_NATIVE selects a slower one, or 0 for none.

    Raises:
        ValueError: GRAFTWORK_WORKER_NATIVE has another value, or names what this CPU lacks.
    """
    wanted = os.environ.get("GRAFTWORK_WORKER_NATIVE", "")
    if wanted == "0":
        return None
    names = supported()
    if wanted in ("", "1"):
        return names[0] if names else None
    if wanted not in names:
        raise ValueError(
            f"GRAFTWORK_WORKER_NATIVE={wanted}: leave it out, set 0 for PyTorch's operations, "
            f"or one of what this CPU has: {', '.join(names) or 'nothing'}"
        )
    return wanted


def load(instructions: str | None) -> ctypes.CDLL | None:
    """Return the library, compiled at most once per source, flags and compiler; None, with a log entry, on
    failure.

    GRAFTWORK_WORKER_CACHE_DIR names the cache folder, by default ~/.cache/graftwork.

    Args:
        instructions: the result of `chosen`.
    """
    if instructions is None:
        if os.environ.get("GRAFTWORK_WORKER_NATIVE") != "0":
            log.info("neither AVX-512 nor AVX2 on this CPU: decoding takes PyTorch's operations")
        return None
    try:
        root = os.environ.get("GRAFTWORK_WORKER_CACHE_DIR") or Path.home() / ".cache" / "graftwork"
        return ctypes.CDLL(str(library(Path(root), instructions)))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        log.warning("the native CPU kernels are not used, decoding will be slower: %s", error)
        return None


def library(root: Path, instructions: str) -> Path:
    """Return the library's file in a cache folder, compiled for a set of instructions by this machine's
    compiler.

    Its name has a digest of sources and flags and one of the compiler. Where there is no compiler, or it
    cannot write to the folder, as in an image, a shipped file of the same sources and flags is used.

    Raises:
        OSError, RuntimeError, subprocess.SubprocessError: it does not exist and cannot be compiled.
    """
    flags = (*FLAGS, *INSTRUCTIONS[instructions])
    parts = [*(path.read_bytes() for path in (SOURCE, *HEADERS)), *(flag.encode() for flag in flags)]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = root / "native"
    try:
        return _by_compiler(folder, key, flags)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        if not (shipped := sorted(folder.glob(f"{key}-*.so"))):
            raise
        log.info("%s came along and is taken: %s", shipped[0], error)
        return shipped[0]


def _by_compiler(folder: Path, key: str, flags: tuple[str, ...]) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise RuntimeError("there is no C++ compiler (g++, clang++ or $CXX)")
    target = folder / f"{key}-{compiler_identity(compiler)}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _compile(compiler, folder, target, flags)
    return target


def libraries(root: Path) -> Sequence[Path]:
    """Return the files for all `INSTRUCTIONS`, compiled in parallel, for any CPU that reads the folder.

    Raises:
        OSError, RuntimeError, subprocess.SubprocessError: as `library`.
    """
    with ThreadPoolExecutor(len(INSTRUCTIONS)) as pool:
        return list(pool.map(partial(library, root), INSTRUCTIONS))


@cache
def compiler_identity(compiler: str) -> str:
    """Return a digest of a compiler's resolved path and its version output.

    Raises:
        OSError, RuntimeError, subprocess.SubprocessError: it cannot be run.
    """
    where = shutil.which(compiler)
    if where is None:
        raise RuntimeError(f"{compiler} is no compiler of this machine")
    done = subprocess.run([where, "--version"], capture_output=True, timeout=_SECONDS, check=False)
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"{compiler} --version failed: {done.stderr.decode(errors='replace')[-400:]}")
    identity = os.path.realpath(where).encode() + b"\0" + done.stdout
    return hashlib.sha256(identity).hexdigest()[:16]


def _compile(compiler: str, folder: Path, target: Path, flags: tuple[str, ...]) -> None:
    """Compile to a temporary file and rename it, so that another process never loads a partial library."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        part = Path(scratch) / target.name
        command = [compiler, *flags, "-o", str(part), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{compiler} failed: {done.stderr.strip()[-400:]}")
        part.rename(target)


if __name__ == "__main__":
    print(*libraries(Path(sys.argv[1])), sep="\n")

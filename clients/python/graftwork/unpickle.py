"""The subprocess of `graftwork.convert`: `unpickle.py PICKLE TARGET SECONDS`. Needs torch, safetensors."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

import torch
from safetensors.torch import save_file

_SPARE = 1 << 30
"""Memory limit beyond the tensors, in bytes."""


def main(source: str, target: str, seconds: int) -> None:
    size = os.stat(source).st_size
    _limit(memory=3 * size + _SPARE, file=2 * size + _SPARE, seconds=seconds)
    try:
        held: Any = torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        sys.exit("it holds objects other than tensors, which can run code: ask its author for safetensors")
    if not isinstance(held, dict) or not held:
        sys.exit(f"it holds a {type(held).__name__}, expected tensors by name")
    tensors: dict[str, torch.Tensor] = {}
    for name, value in held.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            sys.exit(f"{str(name)[:100]!r} is not a plain tensor")
        # safetensors refuses tensors that share memory.
        tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
    save_file(tensors, target, metadata={"format": "pt"})


def _limit(*, memory: int, file: int, seconds: int) -> None:
    """Sets resource limits for good; torch's own libraries are loaded by now."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    with open("/proc/self/statm") if os.path.exists("/proc/self/statm") else open(os.devnull) as own:
        pages = own.read().split()
    used = int(pages[0]) * resource.getpagesize() if pages else 32 << 30
    for limit, value in (
        (resource.RLIMIT_AS, used + memory),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except (MemoryError, RuntimeError) as error:
        sys.exit(
            f"it exceeds its resource limits: {str(error).splitlines()[0][:200] if str(error) else 'memory'}"
        )

"""Rewrites safetensors files with changed tensors, a block of rows at a time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import torch

from contracts.recipes.progress import Code, JobError
from optimizer.merging.changes import TensorChange
from worker_engine.adapters.build import is_finite

BLOCK: Final = 16 << 20
"""Bytes of a tensor that are changed at once."""
_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}
Report = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One entry of a safetensors header. `start` and `stop` are offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(path: Path) -> tuple[bytes, list[StoredTensor]]:
    """Return the file's bytes before the data, and its tensors in the order of the data."""
    with path.open("rb") as file:
        length = file.read(8)
        text = file.read(int.from_bytes(length, "little"))
    entries: dict[str, Any] = json.loads(text)
    entries.pop("__metadata__", None)
    base = len(length) + len(text)
    tensors = [
        StoredTensor(
            name, entry["dtype"], tuple(entry["shape"]), *(base + offset for offset in entry["data_offsets"])
        )
        for name, entry in entries.items()
    ]
    return length + text, sorted(tensors, key=lambda tensor: tensor.start)


def rewrite(source: Path, target: Path, changes: Mapping[str, TensorChange], report: Report) -> str:
    """Write `target` with the same header as `source` and the changed tensors; return the source's SHA-256.

    The file appears by a rename once its content is on the disk.

    Raises:
        JobError: incompatible, naming a tensor that overflows or is of a dtype that cannot be merged.
    """
    head, tensors = read_header(source)
    digest = hashlib.sha256(head)
    part = target.with_name(f".{target.name}.part")
    with source.open("rb") as file, part.open("wb") as out:
        out.write(head)
        file.seek(len(head))
        for tensor in tensors:
            for block in _blocks(file, tensor, changes.get(tensor.name), digest.update, report):
                out.write(block)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, target)
    return digest.hexdigest()


def write_one(
    source: Path, tensor: StoredTensor, name: str, change: TensorChange, target: Path, report: Report
) -> None:
    """Write a file with one tensor: `tensor` of `source` with `change`, under `name`. Raises as `rewrite`."""
    size = tensor.stop - tensor.start
    entry = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [0, size]}
    text = json.dumps({"__metadata__": {"format": "pt"}, name: entry}).encode()
    text += b" " * (-len(text) % 8)
    part = target.with_name(f".{target.name}.part")
    with source.open("rb") as file, part.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        file.seek(tensor.start)
        for block in _blocks(file, tensor, change, lambda data: None, report):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, target)


def _blocks(
    file: IO[bytes],
    tensor: StoredTensor,
    change: TensorChange | None,
    update: Callable[[bytes], object],
    report: Report,
) -> Iterator[bytes | memoryview]:
    """Yield the tensor's bytes, changed by `change`, from the file's position on."""
    size = tensor.stop - tensor.start
    if change is not None and tensor.dtype not in _DTYPES:
        raise JobError(
            Code.INCOMPATIBLE,
            f"tensor {tensor.name} is {tensor.dtype}; adapters are merged into bf16, fp16 or fp32 weights:"
            " take the unquantized checkpoint, or serve the adapter unmerged",
        )
    row = size // max(tensor.shape[0], 1) if tensor.shape else size
    rows = max(1, BLOCK // max(row, 1))
    first = 0
    while size:
        data = file.read(min(rows * row, size) if change is not None else min(BLOCK, size))
        if not data:
            raise JobError(Code.BAD_DATA, f"tensor {tensor.name} is cut off: copy the checkpoint again")
        update(data)
        size -= len(data)
        yield data if change is None else _changed(tensor, change, data, first)
        first += rows
        report(len(data))


def _changed(tensor: StoredTensor, change: TensorChange, data: bytes, first: int) -> memoryview:
    block = torch.frombuffer(bytearray(data), dtype=_DTYPES[tensor.dtype]).view(-1, *tensor.shape[1:])
    merged = change.merged(block, first).contiguous()
    # PyTorch's isfinite takes half of a job's time.
    finite = bool(torch.isfinite(merged).all()) if merged.dtype is torch.float64 else is_finite(merged)
    if not finite:
        raise JobError(
            Code.INCOMPATIBLE,
            f"tensor {tensor.name} overflows {tensor.dtype} with the adapter merged: serve the adapter"
            " unmerged, or take a base checkpoint in bf16 or fp32",
        )
    return merged.view(-1).view(torch.uint8).numpy().data

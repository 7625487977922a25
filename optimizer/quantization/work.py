"""The work folder of a checkpoint in progress, renamed to the output once it is complete.

.OUTPUT.quantizing/
  state.json                  identity of the work
  layers/00000/model.safetensors
  rest.safetensors
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save

from worker_engine.errors import OptimizationError

INDEX: Final = "model.safetensors.index.json"
_SPARE: Final = 64 << 20


class WorkFolder:
    """Finished layers, each in a file that is complete or absent."""

    def __init__(self, output: Path, identity: Mapping[str, Any]) -> None:
        """Resume the work of a run with the same `identity`, and delete that of another.

        Raises:
            OptimizationError: output_exists; out_of_disk.
        """
        if output.exists():
            raise OptimizationError("output_exists", f"{output} is there already: choose another folder")
        self._output = output
        self.path: Final = output.with_name(f".{output.name}.quantizing")
        state, text = self.path / "state.json", json.dumps(identity, sort_keys=True, indent=1)
        if self.path.exists() and not (state.is_file() and state.read_text(encoding="utf-8") == text):
            shutil.rmtree(self.path)
        self._write(state, text.encode())

    def demand_room(self, size: int) -> None:
        """Check the free disk space. `size`: total bytes of the output. Raises OptimizationError:
        out_of_disk.
        """
        there = sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())
        free, needed = shutil.disk_usage(self.path).free, size + _SPARE - there
        if free < needed:
            raise OptimizationError(
                "out_of_disk",
                f"{self._output.parent} has {free >> 20} MiB free, {needed >> 20} are needed: make room and "
                "start again, finished layers are kept",
            )

    def layer(self, index: int) -> Path:
        """Return the folder of one layer's tensors."""
        return self.path / "layers" / f"{index:05}"

    def has_layer(self, index: int) -> bool:
        return (self.layer(index) / "model.safetensors").is_file()

    def write_layer(self, index: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Store one layer. Raises OptimizationError: out_of_disk."""
        self._write(self.layer(index) / "model.safetensors", _bytes(tensors))

    def write_rest(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Store the tensors outside of layers. Raises OptimizationError: out_of_disk."""
        self._write(self.path / "rest.safetensors", _bytes(tensors))

    def finish(self, config: Mapping[str, Any], layers: int, others: Sequence[Path]) -> None:
        """Arrange the files as a checkpoint, with copies of `others`, and rename the folder.

        Raises:
            OptimizationError: output_exists, created by another process; out_of_disk.
        """
        names = [f"model-{number:05}-of-{layers + 1:05}.safetensors" for number in range(1, layers + 2)]
        sources = [self.path / "rest.safetensors"]
        sources += [self.layer(index) / "model.safetensors" for index in range(layers)]
        weight_map: dict[str, str] = {}
        total = 0
        for source, name in zip(sources, names, strict=True):
            entries = _head(source)
            weight_map |= dict.fromkeys(entries, name)
            total += sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in entries.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        self._write(self.path / INDEX, json.dumps(index, indent=2).encode())
        self._write(self.path / "config.json", json.dumps(config, indent=2).encode())
        for other in others:
            self._write(self.path / other.name, other.read_bytes())
        for source, name in zip(sources, names, strict=True):
            os.replace(source, self.path / name)
        shutil.rmtree(self.path / "layers", ignore_errors=True)
        (self.path / "state.json").unlink()
        if self._output.exists():
            raise OptimizationError(
                "output_exists", f"{self._output} came to be meanwhile: choose another folder"
            )
        os.rename(self.path, self._output)

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file atomically and durably."""
        part = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OptimizationError(
                "out_of_disk", f"no room for {path}: make room and start again, finished layers are kept"
            ) from error


def digest_of(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()


def _bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    return save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata={"format": "pt"})


def _head(path: Path) -> dict[str, Any]:
    """Return the tensors and data offsets of a safetensors file."""
    with path.open("rb") as file:
        head: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    head.pop("__metadata__", None)
    return head

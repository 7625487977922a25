"""A Hugging Face folder of safetensors, one file or sharded."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from worker_engine.errors import CheckpointError


class Checkpoint:
    """Tensors by name, checked against the expected shape and brought to one dtype and device."""

    def __init__(self, folder: Path, *, dtype: torch.dtype, device: torch.device) -> None:
        """Opens every file. Raises CheckpointError when there is none, or one is damaged or missing."""
        self._dtype, self._device = dtype, device
        self._files: list[Any] = []
        self._by_name: dict[str, Any] = {}
        for path in _weight_files(folder):
            try:
                file: Any = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"cannot read {path}: {error}") from error
            self._files.append(file)
            self._by_name.update(dict.fromkeys(_names(file), file))

    def __enter__(self) -> Self:
        for file in self._files:
            file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.__exit__(kind, error, trace)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor `name`. Raises CheckpointError when it is missing or not of `shape`."""
        file = self._by_name.get(name)
        if file is None:
            raise CheckpointError(f"the checkpoint has no tensor {name}")
        tensor: torch.Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
        if not tensor.is_floating_point():
            raise CheckpointError(f"tensor {name} is {tensor.dtype}, expected floating point")
        return tensor.to(self._device, self._dtype)


def _names(file: Any) -> list[str]:
    return list(file.keys())


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{index} is not an index of safetensors files: {error!r}") from error
        return [folder / name for name in sorted(names)]
    single = folder / "model.safetensors"
    if not single.is_file():
        raise CheckpointError(
            f"{folder} holds neither model.safetensors nor model.safetensors.index.json; "
            "convert pickled weights with `save_pretrained(..., safe_serialization=True)`"
        )
    return [single]

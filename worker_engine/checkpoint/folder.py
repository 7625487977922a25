"""A Hugging Face folder of safetensors, one file or sharded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch
from safetensors import SafetensorError, safe_open

from kernels.quantization import QuantizedWeight, multiplies
from worker_engine.checkpoint.packed_weights import PackedWeights
from worker_engine.checkpoint.quantization_config import Quantization, Scheme
from worker_engine.checkpoint.quantized_tensors import QuantizedTensors
from worker_engine.errors import CheckpointError

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""Excludes the 8-bit formats, whose tensors need separately stored scales."""
_SHOWN: Final = 3


class Checkpoint:
    """Tensors by name, checked against the expected shape and converted to one dtype and device.

    Every error names the file, and the tensor where it concerns one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: torch.device,
        packed_in: Path | None = None,
        quantization: Quantization | None = None,
    ) -> None:
        """Open every file. Raises CheckpointError when there is none, or one is damaged or missing.

        Args:
            packed_in: folder of the packed-weight files; None disables them.
            quantization: from config.json; `get` dequantizes such weights.
        """
        self._folder = folder
        self.dtype: Final = dtype
        self.device: Final = device
        self._open = ExitStack()
        self._by_name: dict[str, tuple[Path, Any]] = {}
        self._taken: set[str] = set()
        for path, promised in weight_files(folder).items():
            file = self._open_file(path)
            names = list(file.keys())
            if missing := sorted(set(promised) - set(names)):
                raise CheckpointError(f"{path} has no tensor {missing[0]}, which {_INDEX} says is there")
            for name in names:
                if name in self._by_name:
                    raise CheckpointError(f"tensor {name} is in {self._by_name[name][0]} and in {path}")
                self._by_name[name] = (path, file)
        self.packed: Final = PackedWeights.for_checkpoint(folder, list(weight_files(folder)), packed_in)
        self.int8_head: Final = quantization is not None and quantization.int8_head
        self._quantized: QuantizedTensors | None = None
        if quantization is not None:
            self._quantized = QuantizedTensors(quantization, self._by_name, self.stored)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def __contains__(self, name: str) -> bool:
        return name in self._by_name or self._is_quantized(name)

    def get(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the tensor `name` on the checkpoint's device, dequantized if needed.

        Args:
            dtype: by default the checkpoint's.

        Raises:
            CheckpointError: it is missing, damaged, not of `shape` or of an unsupported dtype.
        """
        dtype = self.dtype if dtype is None else dtype
        if self._is_quantized(name) and len(shape) == 2:
            return self.quantized(name, *shape).dequantize().to(self.device, dtype)
        tensor, path = self.stored(name), self._by_name[name][0]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{path}: tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}"
            )
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(f"{path}: tensor {name} is {tensor.dtype}, expected bf16, fp16 or fp32")
        self._taken.add(name)
        return tensor.to(self.device, dtype)

    def scheme(self, name: str) -> Scheme | None:
        """Return how a weight is quantized; None if it is not."""
        return None if self._quantized is None else self._quantized.scheme(name)

    @property
    def multiplies_quantized(self) -> bool:
        """True if this dtype and device multiply quantized weights directly; else they are dequantized."""
        return multiplies(self.dtype, self.device)

    def quantized(self, name: str, out: int, inner: int) -> QuantizedWeight:
        """Return a quantized weight [out, inner], on the CPU. Raises CheckpointError as `get`."""
        if self._quantized is None or name not in self._quantized:
            raise CheckpointError(f"{self._folder}: tensor {name} is not quantized")
        try:
            weight = self._quantized.get(name, (out, inner))
        except CheckpointError as error:
            raise CheckpointError(f"{self._folder}: {error}") from error
        self._taken.update(self._quantized.parts(name))
        return weight

    def quantized_experts(self, name: str, experts: int, out: int, inner: int) -> list[QuantizedWeight]:
        """Return the quantized weights [out, inner] of stacked experts. Raises CheckpointError as `get`."""
        if self._quantized is None or name not in self._quantized:
            raise CheckpointError(f"{self._folder}: tensor {name} is not quantized")
        try:
            weights = self._quantized.get_experts(name, experts, out, inner)
        except CheckpointError as error:
            raise CheckpointError(f"{self._folder}: {error}") from error
        self._taken.update(self._quantized.parts(name))
        return weights

    def pass_over(self, name: str, *shape: int) -> None:
        """Mark a tensor as used without reading it, since its packed form is loaded. Raises as `get`."""
        if self._quantized is not None and name in self._quantized:
            self._taken.update(self._quantized.parts(name))
            return
        if name not in self._by_name:
            raise CheckpointError(f"{self._folder} has no tensor {name}")
        path, file = self._by_name[name]
        if (found := tuple(file.get_slice(name).get_shape())) != shape:
            raise CheckpointError(f"{path}: tensor {name} has shape {list(found)}, expected {list(shape)}")
        self._taken.add(name)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor, as if none were quantized; only file headers are read."""
        stored = {name: tuple(file.get_slice(name).get_shape()) for name, (_, file) in self._by_name.items()}
        return stored if self._quantized is None else self._quantized.shapes(stored)

    def refuse_unused(self, ignored: Sequence[str]) -> None:
        """Refuse tensors that the model never read, since ignoring them could change the result. Call this
        last.

        Args:
            ignored: prefixes and suffixes of names that may stay unused.
        Raises:
            CheckpointError: naming the tensors and their file.
        """
        affixes = tuple(ignored)
        extra = sorted(
            name
            for name in self._by_name.keys() - self._taken
            if not name.startswith(affixes) and not name.endswith(affixes)
        )
        if extra:
            more = f" and {len(extra) - _SHOWN} more" if len(extra) > _SHOWN else ""
            raise CheckpointError(
                f"{self._by_name[extra[0]][0]}: tensor {', '.join(extra[:_SHOWN])}{more} has no place in the "
                "model that config.json describes"
            )

    def _is_quantized(self, name: str) -> bool:
        return self._quantized is not None and name in self._quantized

    def stored(self, name: str) -> torch.Tensor:
        """Return a tensor as stored in its file. Raises CheckpointError."""
        if name not in self._by_name:
            raise CheckpointError(f"{self._folder} has no tensor {name}")
        path, file = self._by_name[name]
        try:
            tensor: torch.Tensor = file.get_tensor(name)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise CheckpointError(f"{path}: cannot read tensor {name}: {error}") from error
        return tensor

    def _open_file(self, path: Path) -> Any:
        try:
            return self._open.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            self._open.close()
            raise CheckpointError(f"cannot read {path}: {error}") from error


def weight_files(folder: Path) -> Mapping[Path, Sequence[str]]:
    """Return every weight file, and the tensors that the index says it holds."""
    index = folder / _INDEX
    if index.is_file():
        return _indexed(index)
    if not (folder / _SINGLE).is_file():
        raise CheckpointError(
            f"{folder} holds neither {_SINGLE} nor {_INDEX}; "
            "convert pickled weights with `save_pretrained(..., safe_serialization=True)`"
        )
    return {folder / _SINGLE: ()}


def _indexed(index: Path) -> Mapping[Path, Sequence[str]]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        items = sorted(weight_map.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of safetensors files: {error!r}") from error
    files: dict[Path, list[str]] = {}
    for name, file in items:
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{index}: tensor {name} must lie in a file beside it, got {file!r}")
        files.setdefault(index.parent / file, []).append(name)
    if not files:
        raise CheckpointError(f"{index} names no tensor")
    return files

"""Reads what a Hugging Face checkpoint folder says of itself: config.json and safetensors headers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controlplane.catalog.safetensors_header import SafetensorsHeader, TensorInfo, read_header
from controlplane.errors import InvalidInputError

_MAX_JSON_BYTES: Final = 64 << 20
_WEIGHT: Final = ".weight"
_EMBEDDING: Final = "model.embed_tokens"
_HEAD: Final = "lm_head"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What validation needs.

    Attributes:
        modules: a module's path -> the shape of its weight, (out, in) of a linear one; of a bias, its name.
    """

    architecture: str
    max_model_len: int
    dtype: str
    modules: dict[str, tuple[int, ...]]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads a folder; of the weights only the headers.

    Raises:
        InvalidInputError: the folder lacks a file or one is not what it should be.
    """
    config = _json(folder / "config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise _refusal(f"{folder / 'config.json'} names no architecture")
    length = config.get("max_position_embeddings")
    if not isinstance(length, int) or length < 1:
        raise _refusal(f"{folder / 'config.json'} must give max_position_embeddings, a positive integer")
    tensors = _tensors(folder)
    modules = {
        name.removesuffix(_WEIGHT): info.shape
        for name, info in sorted(tensors.items())
        if name.endswith((_WEIGHT, ".bias")) and len(info.shape) in (1, 2)
    }
    if _EMBEDDING in modules and (config.get("tie_word_embeddings") or _HEAD not in modules):
        modules[_HEAD] = modules[_EMBEDDING]
    if not any(len(shape) == 2 and ".layers." in path for path, shape in modules.items()):
        raise _refusal(f"{folder} holds no linear layer: its weights must be full-precision safetensors")
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    return Checkpoint(str(architectures[0]), length, str(dtype), modules)


def _tensors(folder: Path) -> dict[str, TensorInfo]:
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        weight_map = _json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise _refusal(f"{index} has no weight_map")
        names = sorted({str(name) for name in weight_map.values()})
    tensors: dict[str, TensorInfo] = {}
    for name in names:
        if Path(name).name != name:
            raise _refusal(f"{index} names {name!r}, which is not a file beside it")
        tensors.update(_header(folder / name).tensors)
    return tensors


def _header(path: Path) -> SafetensorsHeader:
    try:
        with path.open("rb") as stream:
            return read_header(stream, size=path.stat().st_size)
    except OSError as error:
        raise _refusal(f"cannot read {path}: {error.strerror}; give a folder with safetensors") from error
    except ValueError as error:
        raise _refusal(f"{path} is not a safetensors file: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise _refusal(f"{path} is larger than {_MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise _refusal(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise _refusal(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _refusal(f"{path} must hold an object")
    return value


def _refusal(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="source")

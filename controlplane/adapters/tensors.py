"""An adapter's tensors: their names and shapes against the base model, and that all values are finite."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from controlplane.adapters.artifact_store import ByteStream
from controlplane.catalog.safetensors_header import SafetensorsHeader, TensorInfo
from controlplane.errors import RefusedError
from worker_engine.adapters.config import LoraConfig

_NAME: Final = re.compile(r"base_model\.model\.(.{1,300})\.lora_([AB])\.weight")
_EXPONENT: Final = {"F32": ("<u4", 0x7F80_0000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
"""dtype -> its bits as an integer type, and its exponent's mask: all ones mean NaN or infinity.

So numpy, which has no bfloat16, needs none.
"""
_CHUNK: Final = 4 << 20


def check_tensors(
    header: SafetensorsHeader, config: LoraConfig, modules: Mapping[str, tuple[int, int]]
) -> int:
    """Checks names, dtypes and shapes; `modules` maps the base's module path to (out, in).

    Returns:
        the largest rank.

    Raises:
        RefusedError: names the tensor and what was expected.
    """
    sides: dict[str, set[str]] = {}
    for name, info in header.tensors.items():
        module, side = _module_of(name, modules)
        _check_tensor(name, info, side, config.rank_of(module), modules[module])
        sides.setdefault(module, set()).add(side)
    if not sides:
        raise RefusedError("adapter_model.safetensors holds no LoRA tensor")
    for module, found in sides.items():
        if missing := {"A", "B"} - found:
            raise RefusedError(f"tensor base_model.model.{module}.lora_{missing.pop()}.weight is missing")
    for target in config.target_modules:
        if target != "all-linear" and not any(_matches(module, target) for module in sides):
            raise RefusedError(
                f"adapter_config.json targets {target!r}, but no tensor is of a module of that name;"
                f" tensors are of {_kinds(sides)}"
            )
    return max(config.rank_of(module) for module in sides)


def check_values(stream: ByteStream, header: SafetensorsHeader, *, progress: Callable[[], None]) -> None:
    """Reads the data part from its start and looks for NaN and infinity, a chunk at a time.

    Raises:
        RefusedError: names the tensor, or says that the file ended early.
    """
    for name, info in header.tensors.items():
        kind, mask = _EXPONENT[info.dtype]
        left = info.end - info.begin
        while left:
            data = _read(stream, min(left, _CHUNK))
            values = np.frombuffer(data, dtype=kind)
            if ((values & mask) == mask).any():
                raise RefusedError(f"tensor {name} holds NaN or infinite values, expected finite ones")
            left -= len(data)
        progress()


def _module_of(name: str, modules: Mapping[str, tuple[int, int]]) -> tuple[str, str]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise RefusedError(f"tensor {name}: expected base_model.model.<module path>.lora_(A|B).weight")
    module, side = match.groups()
    if module not in modules:
        raise RefusedError(
            f"tensor {name}: the base model has no linear module {module}; expected layers' {_kinds(modules)}"
        )
    return module, side


def _check_tensor(name: str, info: TensorInfo, side: str, rank: int, shape: tuple[int, int]) -> None:
    if info.dtype not in _EXPONENT:
        raise RefusedError(f"tensor {name} is {info.dtype}, expected one of {', '.join(_EXPONENT)}")
    out_features, in_features = shape
    expected = (rank, in_features) if side == "A" else (out_features, rank)
    if info.shape != expected:
        raise RefusedError(f"tensor {name} has shape {list(info.shape)}, expected {list(expected)}")


def _read(stream: ByteStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = stream.read(size - len(data))
        if not part:
            raise RefusedError("adapter_model.safetensors ends before its last tensor: send it again")
        data += part
    return bytes(data)


def _matches(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


def _kinds(modules: Mapping[str, object]) -> str:
    return ", ".join(sorted({module.rpartition(".")[2] for module in modules}))

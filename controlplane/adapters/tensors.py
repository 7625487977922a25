"""Checks an adapter's tensors: names and shapes against the base model, and finite values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contracts.adapters.config import AdapterConfigError, LoraConfig
from contracts.adapters.needs import adapter_needs
from contracts.adapters.split_layers import split_layers
from contracts.adapters.tensors import Part, absent_names, sort_tensors
from contracts.capabilities.traits import AdapterNeeds
from controlplane.artifacts.store import ByteStream
from controlplane.catalog.safetensors_header import SafetensorsHeader
from controlplane.errors import RefusedError

_EXPONENT: Final = {"F32": ("<u4", 0x7F80_0000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
"""dtype -> integer type of the same width, and exponent mask; all ones mean NaN or infinity.

Integers also cover bfloat16, which numpy lacks.
"""
_LARGEST: Final = 3.38e38
"""Largest bfloat16 value, the type in which a worker stores scaled weights."""
_INERT: Final = (Part.A.value, Part.EMBEDDING_A.value, Part.BASE_WEIGHT.value)
"""Name endings of tensors without an effect of their own: the factor A, a copy of the base's weights."""
_CHUNK: Final = 4 << 20


def check_tensors(
    header: SafetensorsHeader,
    config: LoraConfig,
    base: Mapping[str, Sequence[int]],
    *,
    architecture: str = "",
) -> tuple[AdapterNeeds, dict[str, float], list[str]]:
    """Checks names, dtypes and shapes by what is true of every engine.

    Args:
        base: shapes by module path, and of biases by their own name, as `catalog.checkpoint` reads them.
        architecture: the base model's.

    Returns:
        what a copy must serve, the worker's scaling factor by tensor, and warnings.

    Raises:
        RefusedError: names the tensor and what was expected.
    """
    for name, info in header.tensors.items():
        if info.dtype not in _EXPONENT:
            raise RefusedError(f"tensor {name} is {info.dtype}, expected one of {', '.join(_EXPONENT)}")
    shapes = {name: info.shape for name, info in header.tensors.items()}
    tensors = {
        path if path.endswith(".bias") else f"{path}.weight": tuple(shape) for path, shape in base.items()
    }
    split = split_layers(tensors, architecture)
    tensors |= split
    config = config.for_tensors(shapes, tensors, architecture)
    try:
        modules = sort_tensors(config, shapes, tensors)
    except AdapterConfigError as error:
        raise RefusedError(str(error)) from error
    scalings = {
        name: config.scaling_of(module)
        for module, parts in modules.items()
        for part, name in parts.items()
        if part in (Part.B, Part.EMBEDDING_B)
    }
    return adapter_needs(config, modules, tensors, split), scalings, absent_names(config, tensors)


def check_values(
    stream: ByteStream,
    header: SafetensorsHeader,
    *,
    scalings: Mapping[str, float],
    progress: Callable[[], None],
) -> bool:
    """Reads the data part from its start and checks for NaN, infinity and overflow after scaling.

    Returns:
        True if the adapter changes the base model, False if all tensors except lora_A are zero.

    Raises:
        RefusedError: names the tensor, or says that the file ended early.
    """
    changes = False
    for name, info in header.tensors.items():
        kind, mask = _EXPONENT[info.dtype]
        left = info.end - info.begin
        while left:
            data = _read(stream, min(left, _CHUNK))
            values = np.frombuffer(data, dtype=kind)
            if ((values & mask) == mask).any():
                raise RefusedError(f"tensor {name} holds NaN or infinite values, expected finite ones")
            if _largest(values, kind, info.dtype) * max(scalings.get(name, 1.0), 1.0) > _LARGEST:
                raise RefusedError(f"tensor {name} overflows bfloat16 once scaled")
            # The shift drops the sign bit, so that -0.0 counts as zero.
            changes = changes or (not name.endswith(_INERT) and bool((values << 1).any()))
            left -= len(data)
        progress()
    return changes


def _read(stream: ByteStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = stream.read(size - len(data))
        if not part:
            raise RefusedError("adapter_model.safetensors ends before its last tensor: send it again")
        data += part
    return bytes(data)


def _largest(values: npt.NDArray[np.unsignedinteger[Any]], kind: str, dtype: str) -> float:
    """Return the largest magnitude: without the sign, bits sort as their numbers do."""
    if dtype == "F16" or not len(values):
        return 0.0  # at most 65504
    bits = int((values & (0x7FFF if kind == "<u2" else 0x7FFF_FFFF)).max())
    return float(np.array(bits << 16 if kind == "<u2" else bits, dtype=np.uint32).view(np.float32))

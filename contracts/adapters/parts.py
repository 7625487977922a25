"""The parts of an adapter's file: a tensor's name gives its module and its role there."""

from __future__ import annotations

import enum
import re
from typing import Final

from contracts.adapters.config import PREFIX, AdapterConfigError
from contracts.adapters.foreign_weights import MLX_REFUSAL

Shape = tuple[int, ...]

_ADAPTER_NAME: Final = re.compile(r"\.(lora_(?:embedding_)?[AB]|lora_magnitude_vector)\.default(?=\.|$)")
"""Matches the adapter name in tensor names, which a trainer leaves that saves its raw state."""


class Part(enum.Enum):
    """The role of a tensor in its module; the value is the suffix of the tensor's name."""

    A = ".lora_A.weight"
    B = ".lora_B.weight"
    EMBEDDING_A = ".lora_embedding_A"
    EMBEDDING_B = ".lora_embedding_B"
    MAGNITUDE = ".lora_magnitude_vector"
    LORA_BIAS = ".lora_B.bias"
    TOKENS = ".token_adapter.trainable_tokens_delta"
    BASE_WEIGHT = ".base_layer.weight"
    BIAS = ".bias"
    WEIGHT = ".weight"
    PARAMETER = ""
    """A parameter without a suffix, of a module that the adapter replaces, such as Mamba's `A_log`."""

    # Enum's own hash is written in Python, and a load looks parts up thousands of times.
    __hash__ = object.__hash__


_ENDS: Final = (
    (".lora_magnitude_vector.weight", Part.MAGNITUDE),
    (".base_layer.bias", Part.BIAS),
    *((part.value, part) for part in Part if part.value),
)
"""Suffixes in the order of matching: `.weight` and `.bias` end most of the others."""


def split_name(name: str) -> tuple[str, Part]:
    """Return the module's path as the trainer called it, and the tensor's role. Raises AdapterConfigError."""
    path = name.removeprefix(PREFIX)
    if path != name:
        if ".default" in path:
            path = _ADAPTER_NAME.sub(r".\1", path)
        for end, part in _ENDS:
            if path.endswith(end) and len(path) > len(end):
                return path.removesuffix(end), part
        if ".lora_" not in path:
            return path, Part.PARAMETER
    if name.endswith((".lora_a", ".lora_b")):
        raise AdapterConfigError(f"tensor {name[:200]} is not PEFT's: {MLX_REFUSAL}")
    raise AdapterConfigError(
        f"tensor {name[:200]} is not served: expected base_model.model.<module's path> and one of "
        + ", ".join(part.value for part in Part if part.value)
    )

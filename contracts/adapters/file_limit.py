"""Largest weights file of an adapter, by its base model: experts multiply an adapter's size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from contracts.adapters.config import HEAD, MAX_ADAPTER_BYTES
from contracts.adapters.shapes import input_embedding

LARGEST_ADAPTER_BYTES: Final = 15 << 30
"""Largest adapter_model.safetensors for any base. A tenant's uploads may have 16 GiB together."""
DEFAULT_RANK: Final = 64
"""Rank of the largest file that the bundled worker loads by default; also a base model's default limit."""
_VALUE_BYTES: Final = 4
"""PEFT trains and saves in float32 unless it is told otherwise."""

Shape = tuple[int, ...]


def max_adapter_bytes(modules: Mapping[str, Shape], rank: int) -> int:
    """Return the largest weights file that registration, or a worker by default, takes for a base model.

    That is LoRA of this rank in float32 on every matrix and every expert, with embedding and head replaced.
    It is at least MAX_ADAPTER_BYTES and at most LARGEST_ADAPTER_BYTES.

    Args:
        modules: shapes by common name, as `catalog.checkpoint` reads them.
        rank: largest that adapters of the base may have.
    """
    values = sum(_lora_values(shape, rank) for shape in modules.values())
    values += sum(math.prod(modules[name]) for name in {input_embedding(modules), HEAD} & modules.keys())
    return max(MAX_ADAPTER_BYTES, min(LARGEST_ADAPTER_BYTES, values * _VALUE_BYTES))


def _lora_values(shape: Shape, rank: int) -> int:
    """Return the values of A and B on a linear layer, a convolution or a stack of experts."""
    match shape:
        case [out, inner]:
            return rank * (out + inner)
        case [experts, first, second]:
            return experts * rank * (first + second)
    return 0

"""Checks an adapter, given by its shapes, against a base as registration does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from contracts.adapters.config import PREFIX, LoraConfig
from contracts.adapters.tensors import Modules, sort_tensors

Shape = tuple[int, ...]
Tensors = Mapping[str, Shape]
"""Shape by name, without PEFT's prefix."""
RANK = 4


def pair(path: str, out: int, inner: int, rank: int = RANK) -> dict[str, Shape]:
    """Return the two matrices of a linear layer."""
    return {f"{path}.lora_A.weight": (rank, inner), f"{path}.lora_B.weight": (out, rank)}


def check(
    tensors: Tensors, base: Tensors, *, architecture: str = "", **options: Any
) -> tuple[LoraConfig, Modules]:
    """Check the adapter. Raises AdapterConfigError."""
    value = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, **options}
    named = {f"{PREFIX}{name}": shape for name, shape in tensors.items()}
    config = LoraConfig.from_bytes(json.dumps(value).encode()).for_tensors(named, base, architecture)
    return config, sort_tensors(config, named, base)

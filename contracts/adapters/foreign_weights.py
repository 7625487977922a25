"""Adapter weights in other forms than safetensors of PEFT, and what to do with each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PICKLES: Final = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth", "pytorch_model.bin")
SHARD_INDEX: Final = "adapter_model.safetensors.index.json"
MLX_WEIGHTS: Final = "adapters.safetensors"
OTHER_FORMS: Final = (*PICKLES[:1], SHARD_INDEX, MLX_WEIGHTS)
"""File names to probe where a source cannot be listed."""

MLX_REFUSAL: Final = (
    "the adapter was saved by mlx-lm, whose tensors have other names and shapes than PEFT's: rename lora_a"
    " and lora_b to PEFT's lora_A.weight and lora_B.weight, transpose both, set r to its rank and lora_alpha"
    " to scale times rank; or train it with PEFT"
)
_PICKLE_REFUSAL: Final = (
    "{} is a pickle, which can run code when it is loaded: convert it where it was made, by"
    " `graftwork convert FOLDER NEW_FOLDER`, which takes an archive of several adapters as well, and send"
    " adapter_model.safetensors"
)
_SHARD_REFUSAL: Final = (
    "{} says that the weights were saved in shards, which PEFT does not load either: make one file of them by"
    " `graftwork convert FOLDER NEW_FOLDER`, and send adapter_model.safetensors"
)


def pickle_refusal(name: str) -> str:
    """Return why a pickle is not taken, and what to do about it."""
    return _PICKLE_REFUSAL.format(name[:200])


def refusal_of_others(names: Iterable[str]) -> str | None:
    """Return how to convert the weights in the folder when adapter_model.safetensors is missing.

    Args:
        names: the files of the adapter's folder.
    """
    by_name = {name.lower(): name for name in names}
    if SHARD_INDEX in by_name:
        return _SHARD_REFUSAL.format(SHARD_INDEX)
    if MLX_WEIGHTS in by_name:
        return MLX_REFUSAL
    found = next((by_name[name] for name in PICKLES if name in by_name), None)
    return None if found is None else pickle_refusal(found)

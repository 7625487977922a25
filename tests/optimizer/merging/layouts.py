"""Adapters of every layout that the worker reads, and their merged weights computed by hand in float64.

Weights are small multiples of powers of two, and so are scalings: every sum is exact in float32, so a merged
weight has one right answer, its sum rounded to the checkpoint's dtype.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file

from tests.worker_engine.tiny_adapter import CONFIG, PREFIX
from tests.worker_engine.tiny_model import (
    TINY,
    Array,
    Weights,
    family_config,
    save_tensors,
    shapes_of,
    write_checkpoint,
)

EMBED, HEAD = "model.embed_tokens", "lm_head"
LINEAR: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Layout:
    """A layout of adapters.

    Attributes:
        config: fields of adapter_config.json.
        ranks, scalings: of modules whose path ends with the key; the first match counts.
        base: changes of the base's config.json.
        embedded: replaced tensors by path: "weight" for modules_to_save, or the tokens whose rows change.
        biases: True for trained biases of linear modules, or "lora" for those of lora_B.
    """

    config: Mapping[str, Any]
    ranks: Mapping[str, int]
    scalings: Mapping[str, float]
    base: Mapping[str, Any] = field(default_factory=dict)
    replaced: Mapping[str, Any] = field(default_factory=dict)
    biases: str = ""

    def rank(self, path: str) -> int:
        return next((rank for end, rank in self.ranks.items() if path.endswith(end)), 0)

    def scaling(self, path: str) -> float:
        return next(scaling for end, scaling in self.scalings.items() if path.endswith(end))


BIASED: Final = {"model_type": "qwen2"}
TIED: Final = {"tie_word_embeddings": True}
LAYOUTS: Final[Mapping[str, Layout]] = {
    "linear": Layout(
        {"r": 4, "lora_alpha": 8, "target_modules": list(LINEAR)},
        dict.fromkeys(LINEAR, 4),
        dict.fromkeys(LINEAR, 2.0),
    ),
    "patterns": Layout(
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": ["q_proj", "k_proj", "down_proj"],
            "rank_pattern": {"k_proj": 2, r"layers\.1\.self_attn\.q_proj": 8},
            "alpha_pattern": {"down_proj": 16},
        },
        {"k_proj": 2, "layers.1.self_attn.q_proj": 8, "q_proj": 4, "down_proj": 4},
        {"k_proj": 2.0, "layers.1.self_attn.q_proj": 0.5, "q_proj": 1.0, "down_proj": 4.0},
    ),
    "rslora": Layout(
        {"r": 16, "lora_alpha": 8, "use_rslora": True, "target_modules": ["o_proj", "up_proj"]},
        {"o_proj": 16, "up_proj": 16},
        {"o_proj": 2.0, "up_proj": 2.0},
    ),
    "embedding": Layout(
        {"r": 4, "lora_alpha": 4, "target_modules": ["embed_tokens", "lm_head", "v_proj"]},
        {"embed_tokens": 4, "lm_head": 4, "v_proj": 4},
        {"": 1.0},
    ),
    "tied_embedding": Layout(
        {"r": 4, "lora_alpha": 4, "target_modules": ["embed_tokens", "v_proj"]},
        {"embed_tokens": 4, "v_proj": 4},
        {"": 1.0},
        base=TIED,
    ),
    "saved": Layout(
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": ["v_proj"],
            "modules_to_save": ["embed_tokens", "lm_head", "norm", "input_layernorm"],
        },
        {"v_proj": 4},
        {"": 1.0},
        replaced={EMBED: "weight", HEAD: "weight", "model.norm": "weight", "input_layernorm": "weight"},
    ),
    "tokens_of_tied": Layout(
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": ["v_proj"],
            "trainable_token_indices": {"embed_tokens": [3, 200, 7]},
        },
        {"v_proj": 4},
        {"": 1.0},
        base=TIED,
        replaced={EMBED: (3, 200, 7)},
    ),
    "biases": Layout(
        {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "bias": "lora_only"},
        {"q_proj": 4, "v_proj": 4},
        {"": 1.0},
        base=BIASED,
        biases="module",
    ),
    "lora_biases": Layout(
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "lora_bias": True},
        {"q_proj": 4, "v_proj": 4},
        {"": 2.0},
        base=BIASED,
        biases="lora",
    ),
}


def write_base(
    folder: Path, layout: Layout, *, dtype: str = "float32", shard_bytes: int | None = None
) -> Path:
    """Write a tiny checkpoint whose weights are multiples of 1/256 below 1."""
    changes = {**TINY, **layout.base}
    config = family_config(changes.pop("model_type", "llama"), **changes)
    source = np.random.default_rng(5)
    weights: Weights = {
        name: (source.integers(-255, 256, shape) / 256).astype(np.float32)
        for name, shape in shapes_of(config).items()
    }
    return write_checkpoint(folder, config, weights, dtype=dtype, shard_bytes=shard_bytes)


def write_adapter(base: Path, folder: Path, layout: Layout) -> Path:
    """Write an adapter of the layout for the checkpoint `base`."""
    source = np.random.default_rng(9)
    tensors: Weights = {}

    def draw(*shape: int) -> Array:
        return (source.integers(-4, 5, shape) / 8).astype(np.float32)

    shapes = shapes_of(json.loads((base / "config.json").read_text()))
    for name, shape in shapes.items():
        path = name.removesuffix(".weight")
        if path == name:
            continue
        rows, columns = shape[0], shape[-1]
        if (rank := layout.rank(path)) and path == EMBED:
            tensors[f"{PREFIX}{path}.lora_embedding_A"] = draw(rank, rows)
            tensors[f"{PREFIX}{path}.lora_embedding_B"] = draw(columns, rank)
        elif rank:
            tensors[f"{PREFIX}{path}.lora_A.weight"] = draw(rank, columns)
            tensors[f"{PREFIX}{path}.lora_B.weight"] = draw(rows, rank)
            if layout.biases == "module":
                tensors[f"{PREFIX}{path}.bias"] = draw(rows)
            elif layout.biases == "lora":
                tensors[f"{PREFIX}{path}.lora_B.bias"] = draw(rows)
        for end, what in layout.replaced.items():
            if path.endswith(end) and what == "weight":
                tensors[f"{PREFIX}{path}.weight"] = draw(*shape)
            elif path.endswith(end):
                tensors[f"{PREFIX}{path}.token_adapter.trainable_tokens_delta"] = draw(len(what), columns)
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **layout.config}))
    return folder


def merged_by_hand(weights: Mapping[str, Array], adapter: Path, layout: Layout) -> dict[str, Array]:
    """Return every tensor of the merged checkpoint in float64, from the adapter's file alone."""
    held = {
        name.removeprefix(PREFIX): value.astype(np.float64)
        for name, value in load_file(adapter / "adapter_model.safetensors").items()
    }
    merged = {name: value.astype(np.float64) for name, value in weights.items()}
    tied = f"{HEAD}.weight" not in merged
    embedding = merged[f"{EMBED}.weight"].copy()
    for name, value in held.items():
        path, _, part = name.partition(".lora_")
        if part in ("A.weight", "embedding_A"):
            b = held[name.replace("lora_A", "lora_B").replace("embedding_A", "embedding_B")]
            product = layout.scaling(path) * b @ value
            merged[f"{path}.weight"] += product.T if path == EMBED else product
        elif part == "B.bias":
            merged[f"{path}.bias"] += layout.scaling(path) * value
        elif name.endswith(".token_adapter.trainable_tokens_delta"):
            path = name.removesuffix(".token_adapter.trainable_tokens_delta")
            merged[f"{path}.weight"][list(layout.replaced[path])] = value
        elif not part:
            merged[name] = value
    if tied and "embed_tokens" in layout.config["target_modules"]:
        merged[f"{HEAD}.weight"] = embedding
    return merged

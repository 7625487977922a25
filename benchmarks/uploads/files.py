"""Checkpoints that are headers over holes, and adapters of them whose values are drawn at random."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

HIDDEN: Final = 4096
KV: Final = 1024
INNER: Final = 14_336
"""Widths of an 8B Llama."""
RANK: Final = 200
"""With 32 layers in float32, as PEFT saves by default: 2.1 GB, just below what is accepted."""
_MODULES: Final = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
"""Module -> (out, in)."""
_WIDTHS: Final = {"F32": 4, "BF16": 2}
Shapes = dict[str, tuple[int, ...]]


def write_checkpoint(folder: Path, *, layers: int) -> Path:
    """A base of so many layers. Nobody reads its weights but who takes their digest: they are a hole."""
    folder.mkdir(parents=True)
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 8192, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    shapes: Shapes = {"model.embed_tokens.weight": (256, HIDDEN)}
    for layer in range(layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in _MODULES.items()}
    with (folder / "model.safetensors").open("wb") as file:
        size = file.write(_header(shapes, "BF16"))
        file.truncate(size + _nbytes(shapes, "BF16"))
    return folder


def write_adapter(folder: Path, *, layers: int) -> int:
    """An adapter of that base; bytes of its weights' file."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "bias": "none",
        "target_modules": sorted(name.rpartition(".")[2] for name in _MODULES),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    shapes = dict(_adapter_shapes(layers))
    draw = np.random.default_rng(1)
    with (folder / "adapter_model.safetensors").open("wb") as file:
        size = file.write(_header(shapes, "F32"))
        for shape in shapes.values():
            size += file.write(draw.standard_normal(shape, dtype=np.float32).tobytes())
    return size


def _adapter_shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for layer in range(layers):
        for name, (out, into) in _MODULES.items():
            path = f"base_model.model.model.layers.{layer}.{name}"
            yield f"{path}.lora_A.weight", (RANK, into)
            yield f"{path}.lora_B.weight", (out, RANK)


def _header(shapes: Shapes, dtype: str) -> bytes:
    """safetensors' length and JSON."""
    end, told = 0, {}
    for name, shape in shapes.items():
        begin, end = end, end + _nbytes({name: shape}, dtype)
        told[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(told).encode()
    return struct.pack("<Q", len(text)) + text


def _nbytes(shapes: Shapes, dtype: str) -> int:
    return sum(int(np.prod(shape)) for shape in shapes.values()) * _WIDTHS[dtype]

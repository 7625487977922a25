"""Write a tiny random Qwen2-MoE checkpoint and adapters on its experts, without transformers.

tests/parity proves that the worker computes such checkpoints and adapters as transformers and PEFT do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.worker_engine.tiny_adapter import PREFIX
from tests.worker_engine.tiny_model import COMMON, Weights, save_tensors, write_checkpoint

HIDDEN: Final = 64
EXPERTS: Final = 6
INTER: Final = 32
SHARED: Final = 64
LAYERS: Final = 3
HOLDER: Final = "model.layers.0.mlp"
CONFIG: Final[dict[str, Any]] = {
    **COMMON,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "vocab_size": 256,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": INTER,
    "shared_expert_intermediate_size": SHARED,
    "norm_topk_prob": False,
    "mlp_only_layers": [1],
    "qkv_bias": False,
}


def _mlp(inner: int, path: str) -> dict[str, tuple[int, int]]:
    return {
        f"{path}.gate_proj.weight": (inner, HIDDEN),
        f"{path}.up_proj.weight": (inner, HIDDEN),
        f"{path}.down_proj.weight": (HIDDEN, inner),
    }


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (256, HIDDEN),
        "lm_head.weight": (256, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}.{name}.weight"] = (HIDDEN,)
        for name, rows in {"q_proj": HIDDEN, "k_proj": 32, "v_proj": 32, "o_proj": HIDDEN}.items():
            shapes[f"{prefix}.self_attn.{name}.weight"] = (rows, HIDDEN)
        if layer in CONFIG["mlp_only_layers"]:
            shapes |= _mlp(CONFIG["intermediate_size"], f"{prefix}.mlp")
            continue
        shapes |= _mlp(SHARED, f"{prefix}.mlp.shared_expert")
        shapes[f"{prefix}.mlp.shared_expert_gate.weight"] = (1, HIDDEN)
        shapes[f"{prefix}.mlp.gate.weight"] = (EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            shapes |= _mlp(INTER, f"{prefix}.mlp.experts.{expert}")
    return shapes


def write_sparse(folder: Path, *, dtype: str = "float32") -> Path:
    """Write a checkpoint whose layers 0 and 2 have experts; return `folder`."""
    source = np.random.default_rng(5)
    weights: Weights = {
        name: source.normal(1.0 if len(shape) == 1 else 0.0, 0.2, shape).astype(np.float32)
        for name, shape in _shapes().items()
    }
    return write_checkpoint(folder, CONFIG | {"eos_token_id": 255, "bos_token_id": 254}, weights, dtype=dtype)


def write_stacked_adapter(folder: Path, *, seed: int, rank: int = 4, **options: Any) -> Path:
    """Write pairs on all experts of layer 0, as PEFT's `target_parameters` does; return `folder`."""
    pairs = {f"{HOLDER}.experts.base_layer": (HIDDEN, 2 * INTER), f"{HOLDER}.experts": (INTER, HIDDEN)}
    tensors: Weights = {}
    source = np.random.default_rng(seed)
    for path, (inner, out) in pairs.items():
        a = source.normal(0.0, inner**-0.5, (EXPERTS * rank, inner))
        b = source.normal(0.0, 0.5, (out, rank * EXPERTS))
        tensors |= {f"{PREFIX}{path}.lora_A.weight": a, f"{PREFIX}{path}.lora_B.weight": b}
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        "peft_version": "0.21.2",
    }
    return _write(folder, tensors, config | options)


def write_linear_adapter(folder: Path, path: str, *, seed: int = 1, rank: int = 4, **options: Any) -> Path:
    """Write a pair on one linear module of the checkpoint, such as a router; return `folder`."""
    out, inner = _shapes()[f"{path}.weight"]
    source = np.random.default_rng(seed)
    tensors: Weights = {
        f"{PREFIX}{path}.lora_A.weight": source.normal(0.0, 0.3, (rank, inner)),
        f"{PREFIX}{path}.lora_B.weight": source.normal(0.0, 0.3, (out, rank)),
    }
    if options.get("use_dora"):
        tensors[f"{PREFIX}{path}.lora_magnitude_vector"] = source.uniform(0.5, 1.5, (out,))
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [path.rpartition(".")[2]]}
    return _write(folder, tensors, config | options)


def _write(folder: Path, tensors: Weights, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder

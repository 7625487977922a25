"""Write a tiny random DeepSeek-V3 checkpoint without transformers.

tests/parity proves that the worker computes such checkpoints as transformers does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.worker_engine.tiny_model import COMMON, Weights, write_checkpoint

HIDDEN: Final = 64
EXPERTS: Final = 4
CONFIG: Final[dict[str, Any]] = {
    **COMMON,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 256,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "eos_token_id": 255,
    "bos_token_id": 254,
}


def _mlp(inner: int, path: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{path}.gate_proj.weight": (inner, HIDDEN),
        f"{path}.up_proj.weight": (inner, HIDDEN),
        f"{path}.down_proj.weight": (HIDDEN, inner),
    }


def _layer(prefix: str, *, dense: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}.input_layernorm.weight": (HIDDEN,),
        f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
        f"{prefix}.self_attn.q_proj.weight": (4 * 24, HIDDEN),
        f"{prefix}.self_attn.kv_a_proj_with_mqa.weight": (40, HIDDEN),
        f"{prefix}.self_attn.kv_a_layernorm.weight": (32,),
        f"{prefix}.self_attn.kv_b_proj.weight": (4 * 32, 32),
        f"{prefix}.self_attn.o_proj.weight": (HIDDEN, 4 * 16),
    }
    if dense:
        return shapes | _mlp(96, f"{prefix}.mlp")
    for expert in range(EXPERTS):
        shapes |= _mlp(32, f"{prefix}.mlp.experts.{expert}")
    gate = f"{prefix}.mlp.gate"
    router = {f"{gate}.weight": (EXPERTS, HIDDEN), f"{gate}.e_score_correction_bias": (EXPERTS,)}
    return shapes | _mlp(32, f"{prefix}.mlp.shared_experts") | router


def write_latent(folder: Path, *, dtype: str = "float32", extra: str = "", **changes: Any) -> Path:
    """Write a checkpoint whose layer 1 has experts; return `folder`. `extra` names one more tensor."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (256, HIDDEN),
        "lm_head.weight": (256, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        **_layer("model.layers.0", dense=True),
        **_layer("model.layers.1", dense=False),
        **({extra: (HIDDEN,)} if extra else {}),
    }
    source = np.random.default_rng(5)
    weights: Weights = {
        name: source.normal(1.0 if name.endswith("norm.weight") else 0.0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    return write_checkpoint(folder, CONFIG | changes, weights, dtype=dtype)

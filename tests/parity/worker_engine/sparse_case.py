"""Tiny random checkpoints with experts, as transformers writes them, and their references."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.parity import references
from tests.worker_engine.forward_pass import SIZES, WINDOW
from tests.worker_engine.tiny_model import write_tokenizer

Made = Callable[[str], tuple[Path, Any]]
EXPERTS: Final = {"num_experts_per_tok": 2, "moe_intermediate_size": 36}
LATENT: Final = {
    **EXPERTS,
    "num_key_value_heads": 6,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 8.0,
        "mscale": 0.6,
        "mscale_all_dim": 1.3,
    },
}
CASES: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "mixtral": (
        "Mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 36, "sliding_window": WINDOW},
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            **EXPERTS,
            "num_experts": 7,
            "shared_expert_intermediate_size": 52,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 3,
        },
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {**EXPERTS, "num_experts": 8, "norm_topk_prob": True, "head_dim": 32, "decoder_sparse_step": 2},
    ),
    "qwen3-moe-unnormalized": (
        "Qwen3Moe",
        {
            **EXPERTS,
            "num_experts": 5,
            "head_dim": 12,
            "num_experts_per_tok": 3,
            "attention_bias": True,
            # Square matrices: neither the experts' down_proj nor its adapters tell in from out.
            "moe_intermediate_size": 60,
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {
            **LATENT,
            "q_lora_rank": 20,
            "n_shared_experts": 2,
            # More than groups: the best of as many groups as experts are the best of all.
            "num_experts_per_tok": 3,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "deepseek-v2-lite": (
        "DeepseekV2",
        {
            **LATENT,
            "q_lora_rank": None,
            "v_head_dim": 20,
            "attention_bias": True,
            "n_shared_experts": 1,
            "num_experts_per_tok": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            **LATENT,
            "q_lora_rank": 20,
            "n_shared_experts": 1,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "llama4": (
        "Llama4",
        {
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "intermediate_size": 36,
            "intermediate_size_mlp": 88,
            "interleave_moe_layer_step": 2,
            "head_dim": 12,
            "attention_chunk_size": 16,
            "no_rope_layer_interval": 3,
            "floor_scale": 8,
            "attn_scale": 0.4,
        },
    ),
}
STACKED: Final = "-stacked"
"""Suffix of a case whose checkpoint has one tensor for all experts of a layer."""
SINGLE: Final = "-single"
"""Suffix of a case whose checkpoint has a matrix an expert, where transformers writes stacks."""
FORMS: Final = (*CASES, *(f"{name}{STACKED}" for name in CASES if name != "llama4"), f"llama4{SINGLE}")
"""All cases, in both forms of checkpoints."""


def make_families(factory: pytest.TempPathFactory) -> Made:
    """Return what writes a case's checkpoint once, and gives its folder and transformers' model."""

    @cache
    def make(name: str) -> tuple[Path, Any]:
        if name.endswith(STACKED):
            folder, model = make(name.removesuffix(STACKED))
            return stacked(folder, factory.mktemp(name)), model
        if name.endswith(SINGLE):
            folder, model = make(name.removesuffix(SINGLE))
            return single(folder, factory.mktemp(name)), model
        family, changes = CASES[name]
        torch.manual_seed(5)
        prefix = "Llama4Text" if family == "Llama4" else family
        config = getattr(references, f"{prefix}Config")(**(SIZES | {"num_hidden_layers": 3} | changes))
        config._attn_implementation, config._experts_implementation = "eager", "eager"
        model = getattr(references, f"{family}ForCausalLM")(config).eval()
        for key, value in model.named_parameters():
            if value.dim() == 1:
                value.data.normal_(1.0 if key.endswith("norm.weight") else 0.0, 0.4)
            else:
                value.data.normal_(0.0, 0.2)
        for key, value in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                value.normal_(0.0, 0.4)
        folder = factory.mktemp(name)
        model.save_pretrained(folder)
        write_tokenizer(folder)
        return folder, model

    return make


def stacked(source: Path, folder: Path) -> Path:
    """Write the checkpoint with each layer's experts as transformers 5 holds them."""
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(source / "model.safetensors")
    single = {name: value for name, value in tensors.items() if ".experts." in name}
    held = {
        name.replace("block_sparse_moe", "mlp"): value
        for name, value in tensors.items()
        if name not in single
    }
    for holder in dict.fromkeys(name.partition(".experts.")[0] for name in single):
        prefix = f"{holder}.experts."
        mixtral = holder.endswith("block_sparse_moe")
        gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        count = sum(name.startswith(prefix) for name in single) // 3

        def every(part: str, prefix: str = prefix, count: int = count) -> torch.Tensor:
            return torch.stack([single[f"{prefix}{expert}.{part}.weight"] for expert in range(count)])

        target = f"{holder.replace('block_sparse_moe', 'mlp')}.experts"
        held[f"{target}.gate_up_proj"] = torch.cat((every(gate), every(up)), dim=1)
        held[f"{target}.down_proj"] = every(down)
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    return folder


def single(source: Path, folder: Path) -> Path:
    """Write a checkpoint with stacks [experts, in, out] as a matrix [out, in] an expert and projection."""
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    held: dict[str, torch.Tensor] = {}
    for name, value in load_file(source / "model.safetensors").items():
        prefix, found, parameter = name.rpartition(".experts.")
        if not found:
            held[name] = value
            continue
        parts = ("gate_proj", "up_proj") if parameter == "gate_up_proj" else ("down_proj",)
        for expert, matrix in enumerate(value.mT):
            for part, rows in zip(parts, matrix.chunk(len(parts)), strict=True):
                held[f"{prefix}.experts.{expert}.{part}.weight"] = rows.contiguous()
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    return folder


def multimodal(source: Path, folder: Path) -> Path:
    """Write Llama 4's checkpoint as the text model of one that sees images."""
    folder.mkdir()
    text = json.loads((source / "config.json").read_text())
    config = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": text,
        "dtype": text["dtype"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    held = {f"language_model.{name}": value for name, value in tensors.items()}
    held["vision_model.class_embedding"] = torch.zeros(4)
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    return folder

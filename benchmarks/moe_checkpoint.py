"""Write a checkpoint of about 0.5 B random parameters with 16 experts a layer, and adapters on them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from benchmarks.processes import DEMO_MODEL
from contracts.adapters.reference import ADAPTER_FILES

HIDDEN: Final = 1024
INTER: Final = 512
EXPERTS: Final = 16
TOP_K: Final = 2
LAYERS: Final = 16
HEADS: Final = 16
KV_HEADS: Final = 4
HEAD_DIM: Final = 64
VOCABULARY: Final = 49152
RANK: Final = 16
PROJECTIONS: Final = {
    "q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "o_proj": (HIDDEN, HEADS * HEAD_DIM),
}
"""(out, in) of the linear modules of attention."""
DENSE_BYTES: Final = 2 * (
    LAYERS * (sum(out * inner for out, inner in PROJECTIONS.values()) + EXPERTS * HIDDEN)
    + VOCABULARY * HIDDEN
)
"""Bytes of weights that each step reads whatever experts its rows choose: attention, routers and head."""
ATTENTION_LORA_BYTES: Final = 2 * LAYERS * RANK * sum(out + inner for out, inner in PROJECTIONS.values())
"""Bytes of one adapter's pairs on attention."""


def write_checkpoint(folder: Path) -> Path:
    """Write the checkpoint in bf16, with the demo model's tokenizer; return `folder`."""
    import transformers

    library: Any = transformers
    torch.manual_seed(1)
    config = library.Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * INTER,
        moe_intermediate_size=INTER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        norm_topk_prob=True,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    library.Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for path in DEMO_MODEL.glob("*token*"):
        shutil.copy(path, folder)
    return folder


def write_adapter(folder: Path, seed: int) -> Path:
    """Write pairs of rank 16 on attention and all experts, as PEFT's `target_parameters`; return `folder`."""
    source = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}

    def add(path: str, inner: int, out: int, experts: int = 1) -> None:
        name = f"base_model.model.model.layers.{path}"
        a = torch.randn(experts * RANK, inner, generator=source) * inner**-0.5
        b = torch.randn(out, RANK * experts, generator=source) * 0.01
        tensors[f"{name}.lora_A.weight"] = a.bfloat16()
        tensors[f"{name}.lora_B.weight"] = b.bfloat16()

    for layer in range(LAYERS):
        for module, (out, inner) in PROJECTIONS.items():
            add(f"{layer}.self_attn.{module}", inner, out)
        add(f"{layer}.mlp.experts.base_layer", HIDDEN, 2 * INTER, EXPERTS)
        add(f"{layer}.mlp.experts", INTER, HIDDEN, EXPERTS)
    folder.mkdir(parents=True)
    save_file(tensors, folder / ADAPTER_FILES[1], metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(PROJECTIONS),
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        "peft_version": "0.21.2",
    }
    (folder / ADAPTER_FILES[0]).write_text(json.dumps(config))
    return folder

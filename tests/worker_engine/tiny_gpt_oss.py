"""Write a tiny random GPT-OSS checkpoint, plain or in MXFP4, and adapters on its experts.

tests/parity proves that the worker computes such checkpoints as transformers does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken

from kernels.quantization import QuantizedWeight
from kernels.quantization.formats import unpack_e8m0, unpack_mxfp4
from tests.worker_engine.tiny_adapter import PREFIX
from tests.worker_engine.tiny_model import COMMON, byte_tokenizer

HIDDEN: Final = 64
INTER: Final = 64
EXPERTS: Final = 4
LAYERS: Final = 2
WINDOW: Final = 24
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
HOLDER: Final = "model.layers.0.mlp"
MARKS: Final = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")
HARMONY: Final = (
    "{% macro message(role, text, channel='') %}<|start|>{{ role }}"
    "{% if channel %}<|channel|>{{ channel }}{% endif %}<|message|>{{ text }}<|end|>{% endmacro %}"
    "{{ message('system', strftime_now('%Y') + '\nReasoning: ' + (reasoning_effort or 'medium')) }}"
    "{% for m in messages %}{{ message(m.role, m.content, 'final' if m.role == 'assistant' else '') }}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""A template of harmony's messages."""
CONFIG: Final[dict[str, Any]] = {
    **COMMON,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "vocab_size": 272,
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": WINDOW,
    "max_position_embeddings": 512,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "swiglu_limit": 7.0,
    "eos_token_id": 255,
    "bos_token_id": 254,
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
}
del CONFIG["rope_parameters"]


def write_gpt_oss(folder: Path, *, mxfp4: bool = False) -> Path:
    """Write a checkpoint in bf16; return `folder`.

    Args:
        mxfp4: write the experts as blocks and scales, otherwise the same values in bf16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = torch.Generator().manual_seed(5)
    tensors = {name: _drawn(name, shape, source) for name, shape in _dense_shapes().items()}
    for layer in range(LAYERS):
        for name, out, inner in (("gate_up_proj", 2 * INTER, HIDDEN), ("down_proj", HIDDEN, INTER)):
            path = f"model.layers.{layer}.mlp.experts.{name}"
            blocks = torch.randint(
                0, 256, (EXPERTS, out, inner // 32, 16), generator=source, dtype=torch.uint8
            )
            scales = torch.randint(122, 126, (EXPERTS, out, inner // 32), generator=source, dtype=torch.uint8)
            if mxfp4:
                tensors |= {f"{path}_blocks": blocks, f"{path}_scales": scales}
            else:
                tensors[path] = _widened(blocks, scales)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = CONFIG | {"dtype": "bfloat16"}
    if mxfp4:
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [255, 260]}))
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(HARMONY)
    return folder


def _dense_shapes() -> dict[str, tuple[int, ...]]:
    vocabulary, queries, keys = CONFIG["vocab_size"], HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "lm_head.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}.{name}.weight"] = (HIDDEN,)
        linears = {"q_proj": (queries, HIDDEN), "k_proj": (keys, HIDDEN), "v_proj": (keys, HIDDEN)}
        for name, shape in (linears | {"o_proj": (HIDDEN, queries)}).items():
            shapes[f"{prefix}.self_attn.{name}.weight"] = shape
            shapes[f"{prefix}.self_attn.{name}.bias"] = shape[:1]
        shapes[f"{prefix}.self_attn.sinks"] = (HEADS,)
        shapes |= {f"{prefix}.mlp.router.weight": (EXPERTS, HIDDEN), f"{prefix}.mlp.router.bias": (EXPERTS,)}
        shapes[f"{prefix}.mlp.experts.gate_up_proj_bias"] = (EXPERTS, 2 * INTER)
        shapes[f"{prefix}.mlp.experts.down_proj_bias"] = (EXPERTS, HIDDEN)
    return shapes


def _drawn(name: str, shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    centre = 1.0 if name.endswith("norm.weight") else 0.0
    spread = 0.5 if name.endswith(("bias", "sinks")) else 0.2
    return (centre + spread * torch.randn(shape, generator=source)).bfloat16()


def _widened(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the experts' values as transformers holds them, [experts, in, out]."""
    experts = [
        QuantizedWeight(unpack_mxfp4(codes).flatten(1), unpack_e8m0(exponents), None, 4, "e2m1")
        for codes, exponents in zip(blocks, scales, strict=True)
    ]
    return torch.stack([expert.dequantize().bfloat16().T for expert in experts]).contiguous()


def write_stacks(folder: Path, *, seed: int, rank: int = 4) -> Path:
    """Write pairs on all experts of layer 0 as PEFT's `target_parameters` does; return `folder`."""
    shapes = {f"{HOLDER}.experts.base_layer": (HIDDEN, 2 * INTER), f"{HOLDER}.experts": (INTER, HIDDEN)}
    source = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for path, (inner, out) in shapes.items():
        tensors |= _pair(path, EXPERTS * rank, inner, out, source)
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    return _write(folder, tensors, {"r": rank, "lora_alpha": rank, "target_parameters": parameters})


def write_pairs(folder: Path, shapes: Mapping[str, tuple[int, int]], targets: str, *, seed: int = 1) -> Path:
    """Write plain pairs of rank 4 by their path: (out, in); return `folder`."""
    source = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for path, (out, inner) in shapes.items():
        tensors |= _pair(path, 4, inner, out, source)
    return _write(folder, tensors, {"r": 4, "lora_alpha": 8, "target_modules": targets})


def _pair(path: str, rank: int, inner: int, out: int, source: torch.Generator) -> dict[str, torch.Tensor]:
    a = torch.randn(rank, inner, generator=source) * inner**-0.5
    b = torch.randn(out, rank, generator=source) * 0.5
    return {f"{PREFIX}{path}.lora_A.weight": a, f"{PREFIX}{path}.lora_B.weight": b}


def _write(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    return folder


LAYOUTS: Final[Mapping[str, Callable[[Path], Path]]] = {
    "stacks": lambda folder: write_stacks(folder, seed=1),
    "singles": lambda folder: write_pairs(
        folder,
        {f"{HOLDER}.experts.1.gate_proj": (INTER, HIDDEN), f"{HOLDER}.experts.2.down_proj": (HIDDEN, INTER)},
        r".*\.(gate|down)_proj",
    ),
    "lists": lambda folder: write_pairs(
        folder,
        {f"{HOLDER}.experts.gate_up_projs.{number}": (2 * INTER, HIDDEN) for number in range(EXPERTS)},
        r".*\.gate_up_projs\.\d",
    ),
    "attention and router": lambda folder: write_pairs(
        folder,
        {
            "model.layers.0.self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            f"{HOLDER}.router": (EXPERTS, HIDDEN),
        },
        r".*\.(q_proj|router)",
    ),
}
"""Adapters by the layout of their file."""

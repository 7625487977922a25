"""Tiny checkpoints, and random adapters for them, in the files that customers would bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_CONFIG: Final[dict[str, Any]] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "float32",
    "vocab_size": 256,
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 255,
    "bos_token_id": 254,
}
_WIDE, _INNER, _LAYERS = 72, 104, 3
_SHAPES: Final = {
    "self_attn.q_proj": (72, _WIDE),
    "self_attn.k_proj": (24, _WIDE),
    "self_attn.v_proj": (24, _WIDE),
    "self_attn.o_proj": (_WIDE, 72),
    "mlp.gate_proj": (_INNER, _WIDE),
    "mlp.up_proj": (_INNER, _WIDE),
    "mlp.down_proj": (_WIDE, _INNER),
}
"""(out, in) of each linear layer."""
_RANK: Final = 4
_ADAPTED: Final = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
_ADAPTER_CONFIG: Final = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": _RANK,
    "lora_alpha": 2 * _RANK,
    "bias": "none",
    "target_modules": [module.rpartition(".")[2] for module in _ADAPTED],
}


def write_model(folder: Path, *, seed: int) -> Path:
    """A Llama of three layers and random weights, with a tokenizer of bytes."""
    folder.mkdir(parents=True)
    drawn = np.random.default_rng(seed)
    tensors = {
        "model.embed_tokens.weight": _normal(drawn, (256, _WIDE), 0.2),
        "lm_head.weight": _normal(drawn, (256, _WIDE), 0.2),
        "model.norm.weight": np.ones(_WIDE, np.float32),
    }
    for layer in range(_LAYERS):
        path = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{path}.{norm}.weight"] = np.ones(_WIDE, np.float32)
        for module, shape in _SHAPES.items():
            tensors[f"{path}.{module}.weight"] = _normal(drawn, shape, 0.2)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    _write_tokenizer(folder)
    return folder


def adapter_files(*, seed: int) -> dict[str, bytes]:
    """The two files of an adapter whose answers are its own: B is far from zero."""
    drawn = np.random.default_rng(seed)
    tensors = {}
    for layer in range(_LAYERS):
        for module in _ADAPTED:
            out, inner = _SHAPES[module]
            path = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{path}.lora_A.weight"] = _normal(drawn, (_RANK, inner), 0.2)
            tensors[f"{path}.lora_B.weight"] = _normal(drawn, (out, _RANK), 0.4)
    config = json.dumps(_ADAPTER_CONFIG).encode()
    return {"adapter_config.json": config, "adapter_model.safetensors": save(tensors)}


def _normal(drawn: np.random.Generator, shape: tuple[int, ...], scale: float) -> NDArray[np.float32]:
    return (drawn.standard_normal(shape) * scale).astype(np.float32)


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")

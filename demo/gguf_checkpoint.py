"""Converts a Llama GGUF file into the folder that `save_pretrained` of transformers would write.

It supports only the demo model's features: Llama with tied embeddings, and a byte-level BPE tokenizer with
GPT-2's pre-tokenizer. It needs numpy alone, so that the model is ready while PyTorch is being installed.
Names and permutations: https://github.com/ggml-org/llama.cpp/blob/master/docs/development/HOWTO-add-model.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from demo.gguf_file import Floats, GgufFile, Tensor

Bf16 = np.ndarray[Any, np.dtype[np.uint16]]
"""Bits of bf16 numbers."""

_OF_THE_MODEL: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_OF_A_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL: Final = 3
"""Token type of special tokens."""
_BYTE_LEVEL: Final = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}


class _Facts:
    """The file's key-value pairs."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts

    def llama(self, key: str) -> Any:
        return self._facts[f"llama.{key}"]

    def tokenizer(self, key: str) -> Any:
        return self._facts[f"tokenizer.{key}"]


def convert(gguf: Path, folder: Path) -> None:
    """Write the checkpoint in `gguf` as bf16 safetensors with its configuration and tokenizer to `folder`.

    Raises:
        KeyError: the file lacks a key, or has a tensor that this model does not use.
        ModelSetupError: it is no GGUF file of a supported version, or has a tensor of an unsupported type.
    """
    file = GgufFile(gguf)
    facts = _Facts(file.facts)
    folder.mkdir()
    _write_tensors(
        folder / "model.safetensors",
        {_tensor_name(tensor.name): _weights(tensor, facts) for tensor in file.tensors()},
    )
    _write(folder / "config.json", _config(facts))
    _write(folder / "generation_config.json", _special_ids(facts))
    _write(folder / "tokenizer.json", _tokenizer(facts))
    _write(folder / "tokenizer_config.json", _tokenizer_config(facts))
    (folder / "chat_template.jinja").write_text(facts.tokenizer("chat_template"))


def _tensor_name(name: str) -> str:
    match name.split("."):
        case ["blk", layer, module, kind]:
            return f"model.layers.{layer}.{_OF_A_LAYER[module]}.{kind}"
        case [module, kind]:
            return f"{_OF_THE_MODEL[module]}.{kind}"
    raise KeyError(name)


def _weights(tensor: Tensor, facts: _Facts) -> Bf16:
    """Return the tensor's bf16 bits, shape (out features, in features) or (features,)."""
    values = tensor.floats()
    if tensor.name.endswith("attn_q.weight"):
        values = _rotated_in_halves(values, facts.llama("attention.head_count"))
    elif tensor.name.endswith("attn_k.weight"):
        values = _rotated_in_halves(values, facts.llama("attention.head_count_kv"))
    # numpy has no bf16: round to the nearest, ties to even, as PyTorch does. The model has no NaN.
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def _write_tensors(path: Path, tensors: Mapping[str, Bf16]) -> None:
    """Write bf16 tensors as safetensors: the header's size, the header as JSON, the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, values in tensors.items():
        start, end = end, end + values.nbytes
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).data)


def _rotated_in_halves(values: Floats, heads: int) -> Floats:
    """Reorder each head's rows from GGUF's adjacent pairs to Hugging Face's two halves."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _config(facts: _Facts) -> dict[str, Any]:
    heads, width = facts.llama("attention.head_count"), facts.llama("embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": width // heads,
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": facts.llama("feed_forward_length"),
        "max_position_embeddings": facts.llama("context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": facts.llama("block_count"),
        "num_key_value_heads": facts.llama("attention.head_count_kv"),
        "rms_norm_eps": facts.llama("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_theta": facts.llama("rope.freq_base"), "rope_type": "default"},
        "tie_word_embeddings": True,
        "vocab_size": facts.llama("vocab_size"),
        **_special_ids(facts),
    }


def _special_ids(facts: _Facts) -> dict[str, int]:
    return {
        "bos_token_id": facts.tokenizer("ggml.bos_token_id"),
        "eos_token_id": facts.tokenizer("ggml.eos_token_id"),
        "pad_token_id": facts.tokenizer("ggml.padding_token_id"),
    }


def _tokenizer_config(facts: _Facts) -> dict[str, Any]:
    tokens = facts.tokenizer("ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[facts.tokenizer("ggml.bos_token_id")],
        "eos_token": tokens[facts.tokenizer("ggml.eos_token_id")],
        "pad_token": tokens[facts.tokenizer("ggml.padding_token_id")],
        "unk_token": tokens[facts.tokenizer("ggml.unknown_token_id")],
    }


def _tokenizer(facts: _Facts) -> dict[str, Any]:
    """Return the tokenizer.json of the `tokenizers` library."""
    tokens = facts.tokenizer("ggml.tokens")
    kinds = facts.tokenizer("ggml.token_type")
    special = [number for number, kind in enumerate(kinds) if kind == _CONTROL]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": tokens[number], **plain} for number in special],
        "pre_tokenizer": {**_BYTE_LEVEL, "add_prefix_space": False},
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in facts.tokenizer("ggml.merges")],
        },
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")

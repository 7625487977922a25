"""Write tiny random checkpoints in Hugging Face form, with numpy and safetensors alone.

Importing transformers costs seconds in every test process. `tests/parity/test_tiny_model.py` proves that
transformers writes the same config fields, tensor names, shapes and dtypes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import TensorSpec, serialize_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HERMES_TEMPLATE: Final = r"""{% if tools %}{% for t in tools %}{{ t | tojson }}
{% endfor %}Answer in <tool_call></tool_call>.
{% endif %}{% for m in messages %}{{ m.role }}: {% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}{{ "\n" }}{% endfor %}assistant:"""
"""A chat template that knows tools in Hermes' form."""
Array = npt.NDArray[Any]
Weights = dict[str, Array]

ARCHITECTURES: Final[Mapping[str, str]] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
COMMON: Final[Mapping[str, Any]] = {
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": None,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "pad_token_id": None,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "use_cache": True,
}
DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1},
    "mistral": {"sliding_window": 4096},
    "qwen2": {"max_window_layers": 28, "sliding_window": None, "use_sliding_window": False},
    "qwen3": {
        "attention_bias": False,
        "max_window_layers": 28,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "gemma3_text": {
        "_sliding_window_pattern": 6,
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "final_logit_softcapping": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": False,
    },
}
TINY: Final[Mapping[str, Any]] = {
    "vocab_size": 256,
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": 255,
    "bos_token_id": 254,
    "initializer_range": 0.2,
}
DTYPES: Final[Mapping[str, int]] = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element."""


def family_config(model_type: str, **changes: Any) -> dict[str, Any]:
    """Return config.json of a model family: its defaults, `changes`, and the fields derived from them."""
    config: dict[str, Any] = {**COMMON, **DEFAULTS[model_type], **changes}
    if model_type == "gemma3_text":
        del config["hidden_act"]
    if model_type == "llama" and "head_dim" not in config:
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    if model_type not in ("llama", "mistral") and "layer_types" not in config:
        config["layer_types"] = _layer_types(config)
    return config | {
        "architectures": [ARCHITECTURES[model_type]],
        "dtype": "float32",
        "model_type": model_type,
    }


def _layer_types(config: Mapping[str, Any]) -> list[str]:
    layers = range(config["num_hidden_layers"])
    if pattern := config.get("_sliding_window_pattern"):
        sliding = [bool((layer + 1) % pattern) for layer in layers]
    else:
        sliding = [config["use_sliding_window"] and layer >= config["max_window_layers"] for layer in layers]
    return ["sliding_attention" if each else "full_attention" for each in sliding]


def tiny_config(**changes: Any) -> dict[str, Any]:
    """Return config.json of a Llama with 3 layers, odd shapes and heads that are grouped 3 to 1."""
    return family_config("llama", **{**TINY, **changes})


def _layer_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's tensors, by their names within the layer."""
    family, hidden, inner = config["model_type"], config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    matrices = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in matrices.items()}
    for name, (rows, _) in matrices.items():
        attention = config.get("attention_bias") or (family == "qwen2" and "o_proj" not in name)
        if config.get("mlp_bias") if name.startswith("mlp") else attention:
            shapes[f"{name}.bias"] = (rows,)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family == "gemma3_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    shapes |= {f"{name}.weight": (hidden,) for name in norms}
    if family in ("qwen3", "gemma3_text"):
        shapes |= {f"self_attn.{name}.weight": (head_dim,) for name in ("q_norm", "k_norm")}
    return shapes


def shapes_of(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the checkpoint by its name."""
    table = (config["vocab_size"], config["hidden_size"])
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
    shapes["model.norm.weight"] = (config["hidden_size"],)
    return shapes if config["tie_word_embeddings"] else shapes | {"lm_head.weight": table}


def random_weights(config: Mapping[str, Any], *, seed: int) -> Weights:
    """Draw matrices as transformers does at the start of training; norms change nothing, biases are zero."""
    source = np.random.default_rng(seed)
    gain = 0.0 if config["model_type"] == "gemma3_text" else 1.0
    return {
        name: source.normal(0.0, config["initializer_range"], shape).astype(np.float32)
        if len(shape) > 1
        else np.full(shape, gain if name.endswith("norm.weight") else 0.0, np.float32)
        for name, shape in shapes_of(config).items()
    }


def randomize_vectors(weights: Weights, *, seed: int, scale: float, gain: float, bias: float) -> None:
    """Draw norms around `gain` and biases around `bias`: at their start a model that omits them is right."""
    source = np.random.default_rng(seed)
    for name, value in weights.items():
        if value.ndim == 1:
            centre = gain if name.endswith("norm.weight") else bias
            weights[name] = source.normal(centre, scale, value.shape).astype(np.float32)


def _stored(value: Array, dtype: str) -> Array:
    """The tensor as its file holds it."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(value, dtype)
    # numpy has no bfloat16: round to the nearest, ties to even, as torch does.
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def save_tensors(path: Path, tensors: Mapping[str, Array], dtype: str = "float32") -> None:
    """Write one safetensors file."""
    stored = {name: _stored(tensors[name], dtype) for name in sorted(tensors)}
    specs = {
        name: TensorSpec(dtype=dtype, shape=value.shape, data_ptr=value.ctypes.data, data_len=value.nbytes)
        for name, value in stored.items()
    }
    serialize_file(specs, str(path), {"format": "pt"})


def write_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    weights: Weights,
    *,
    dtype: str = "float32",
    shard_bytes: int | None = None,
) -> Path:
    """Write config.json, generation_config.json, the weights and the byte-level tokenizer; return `folder`.

    Args:
        shard_bytes: size at which one file of weights ends and the next begins; None writes a single file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=2, sort_keys=True))
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "use_cache")}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    if shard_bytes is None:
        save_tensors(folder / "model.safetensors", weights, dtype)
    else:
        _write_shards(folder, weights, dtype, shard_bytes)
    write_tokenizer(folder)
    return folder


def _write_shards(folder: Path, weights: Weights, dtype: str, shard_bytes: int) -> None:
    shards: list[Weights] = [{}]
    for name, value in weights.items():
        if (
            shards[-1]
            and (sum(each.size for each in shards[-1].values()) + value.size) * DTYPES[dtype] > shard_bytes
        ):
            shards.append({})
        shards[-1][name] = value
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_tensors(folder / file, shard, dtype)
        weight_map |= dict.fromkeys(shard, file)
    size = sum(value.size for value in weights.values()) * DTYPES[dtype]
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def write_model(folder: Path, *, seed: int, dtype: str = "float32", **changes: Any) -> Path:
    """Write a random Llama checkpoint: `tiny_config` with `changes`; return `folder`."""
    config = tiny_config(**changes)
    return write_checkpoint(folder, config, random_weights(config, seed=seed), dtype=dtype)


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer of 256 tokens, one a byte, so that characters split across tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_tokenizer(folder: Path) -> None:
    """Write the byte-level tokenizer and a chat template that has no tools."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    )

"""config.json: what each family reads from it, old spellings and new, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from worker_engine.checkpoint.rope_config import LinearScaling, Rope, YarnScaling
from worker_engine.errors import CheckpointError
from worker_engine.models import FAMILIES, load_config

COMMON: Final = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "eos_token_id": 7,
}
KINDS: Final = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3_text",
}


def write(folder: Path, architecture: str, **changes: Any) -> Path:
    values = COMMON | {"architectures": [architecture], "model_type": KINDS[architecture]} | changes
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def windows(folder: Path) -> list[int]:
    return [layer.window for layer in load_config(folder).attention]


def test_sizes_and_dtype(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "LlamaForCausalLM", head_dim=10))
    assert (config.num_layers, config.head_dim, config.num_kv_heads) == (3, 10, 2)
    assert config.dtype == "bfloat16"
    assert config.eos_token_ids == (7,)
    assert config.linear_shapes["o_proj"] == (32, 40)
    assert config.embedding_shape == (100, 32)


def test_generation_config_names_the_last_tokens(tmp_path: Path) -> None:
    folder = write(tmp_path, "LlamaForCausalLM")
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert load_config(folder).eos_token_ids == (3, 4)
    (folder / "generation_config.json").write_text('{"eos_token_id": "end"}')
    with pytest.raises(CheckpointError, match=r"generation_config.json: eos_token_id .*'end'"):
        load_config(folder)


def test_model_type_alone_names_the_family(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "Qwen3ForCausalLM", architectures=None)).head_dim == 128


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("LlamaForCausalLM", {}, [0, 0, 0]),
        ("LlamaForCausalLM", {"sliding_window": 8}, [0, 0, 0]),
        ("MistralForCausalLM", {"sliding_window": 8}, [8, 8, 8]),
        ("MistralForCausalLM", {"sliding_window": None}, [0, 0, 0]),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": False}, [0, 0, 0]),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
            [0, 8, 8],
        ),
        (
            "Qwen3ForCausalLM",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0},
            [8, 8, 8],
        ),
        ("Gemma3ForCausalLM", {"sliding_window": 8, "sliding_window_pattern": 2}, [8, 0, 8]),
        (
            "Gemma3ForCausalLM",
            {"sliding_window": 8, "layer_types": ["full_attention"] * 2 + ["sliding_attention"]},
            [0, 0, 8],
        ),
    ],
)
def test_windows(tmp_path: Path, architecture: str, changes: dict[str, Any], expected: list[int]) -> None:
    assert windows(write(tmp_path, architecture, **changes)) == expected


def test_rope_of_old_and_new_files(tmp_path: Path) -> None:
    old = {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0}}
    for changes in (old, new):
        config = load_config(write(tmp_path, "LlamaForCausalLM", **changes))
        assert config.attention[0].rope == Rope(300.0, LinearScaling(2.0))


def test_yarn_lengthens_the_context(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, "Qwen2ForCausalLM", rope_scaling={"type": "yarn", "factor": 4.0}, rope_theta=9.0)
    )
    assert config.attention[0].rope == Rope(9.0, YarnScaling(4.0, 256, 32.0, 1.0, 0.0, True))
    assert config.max_position_embeddings == 1024


@pytest.mark.parametrize("written", ["old", "new"])
def test_gemma3_has_two_ropes(tmp_path: Path, written: str) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    changes: dict[str, Any] = {"rope_theta": 900.0, "rope_local_base_freq": 30.0, "rope_scaling": scaling}
    if written == "new":
        changes = {
            "rope_parameters": {
                "full_attention": scaling | {"rope_theta": 900.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            }
        }
    folder = write(tmp_path, "Gemma3ForCausalLM", sliding_window=8, sliding_window_pattern=3, **changes)
    ropes = [layer.rope for layer in load_config(folder).attention]
    assert ropes == [Rope(30.0), Rope(30.0), Rope(900.0, LinearScaling(8.0))]


def test_published_gemma3_states_few_sizes(tmp_path: Path) -> None:
    """As gemma-3-4b-it's config.json does."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    values = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
        "torch_dtype": "bfloat16",
        "eos_token_id": [1, 106],
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = load_config(tmp_path)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.dtype, config.eos_token_ids) == (262208, "bfloat16", (1, 106))
    assert config.attention[5].window == 0
    assert config.attention[5].rope == Rope(1e6, LinearScaling(8.0))
    assert config.attention[6].window == 1024
    assert config.attention[6].rope == Rope(1e4)


REFUSED: Final[list[tuple[str, dict[str, Any], str]]] = [
    ("LlamaForCausalLM", {"architectures": ["FooForCausalLM"]}, "architectures .*FooForCausalLM"),
    ("LlamaForCausalLM", {"model_type": "mistral"}, "architectures"),
    ("LlamaForCausalLM", {"architectures": "LlamaForCausalLM"}, "architectures"),
    ("LlamaForCausalLM", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("LlamaForCausalLM", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ("LlamaForCausalLM", {"vocab_size": None}, "vocab_size is missing"),
    ("LlamaForCausalLM", {"vocab_size": "100"}, "vocab_size"),
    ("LlamaForCausalLM", {"hidden_size": 0}, "hidden_size"),
    ("LlamaForCausalLM", {"num_hidden_layers": 10**6}, "num_hidden_layers"),
    ("LlamaForCausalLM", {"num_hidden_layers": True}, "num_hidden_layers"),
    ("LlamaForCausalLM", {"num_key_value_heads": 3}, "num_attention_heads"),
    ("LlamaForCausalLM", {"head_dim": 7}, "head_dim"),
    ("LlamaForCausalLM", {"head_dim": 512}, "head_dim"),
    ("LlamaForCausalLM", {"rms_norm_eps": -1}, "rms_norm_eps"),
    ("LlamaForCausalLM", {"attention_bias": "no"}, "attention_bias"),
    ("LlamaForCausalLM", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    (
        "LlamaForCausalLM",
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope_scaling: type 'dynamic'",
    ),
    ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling: rope_type 'longrope'"),
    ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor"),
    ("LlamaForCausalLM", {"rope_scaling": ["linear"]}, "rope_scaling"),
    ("LlamaForCausalLM", {"rope_parameters": {"rope_theta": "big"}}, "rope_parameters: rope_theta"),
    (
        "Qwen2ForCausalLM",
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}},
        "rope_scaling: mscale",
    ),
    ("Qwen2ForCausalLM", {"rope_scaling": {"mrope_section": [1, 2]}}, "rope_scaling: mrope_section"),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": -4}, "sliding_window"),
    ("Qwen2ForCausalLM", {"layer_types": ["sliding_attention"] * 3}, "layer_types .*sliding_window"),
    ("Qwen3ForCausalLM", {"layer_types": ["full_attention"] * 2}, "layer_types names 2 layers"),
    ("Qwen3ForCausalLM", {"layer_types": ["chunked_attention"] * 3}, "layer_types 'chunked_attention'"),
    ("MistralForCausalLM", {"layer_types": ["full_attention"] * 3}, "layer_types"),
    ("MistralForCausalLM", {"attention_bias": True}, "attention_bias"),
    ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
    ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("Gemma3ForCausalLM", {"hidden_activation": "relu"}, "hidden_activation 'relu'"),
    ("Gemma3ForCausalLM", {"rope_parameters": {"rope_theta": 1.0}}, "rope_parameters: rope_theta"),
]


@pytest.mark.parametrize(("architecture", "changes", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_by_file_and_field(
    tmp_path: Path, architecture: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: (.*: )?{message}"):
        load_config(write(tmp_path, architecture, **changes))


def test_an_unknown_architecture_is_told_what_is_served(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_config(write(tmp_path, "LlamaForCausalLM", architectures=["FooForCausalLM"], model_type="foo"))
    assert all(name in str(caught.value) for name in FAMILIES)


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff", "[" * 100_000])
def test_config_that_is_no_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_config(tmp_path)

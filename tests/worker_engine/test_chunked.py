"""Llama 4: plans of chunks of positions, and what config.json may ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from kernels.attention import AttentionPlan
from worker_engine.checkpoint.model_config import QueryGrowth
from worker_engine.errors import CheckpointError
from worker_engine.layers.chunked_attention import chunked
from worker_engine.models import load_config

TEXT: Final[dict[str, Any]] = {
    "architectures": ["Llama4ForCausalLM"],
    "model_type": "llama4_text",
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 10485760,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": 4,
    "no_rope_layers": [],
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
"""As Llama-4-Scout states it."""


def write(folder: Path, values: Mapping[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_a_plan_is_cut_at_the_chunks_of_positions() -> None:
    """A prompt over three chunks, a decode row in the second chunk, and one that begins a chunk."""
    pages = [list(range(10, 16)), [20, 21, 22], [30, 31]]
    plan = AttentionPlan.build([20, 1, 1], [22, 10, 5], pages, page_size=4)
    cut = chunked(plan, 8)
    assert cut.query_lens == (6, 8, 6, 1, 1)
    assert cut.context_lens == (8, 8, 6, 2, 5)
    assert [list(held) for held in cut.pages] == [[10, 11], [12, 13], [14, 15], [22], [30, 31]]
    assert cut.slots is plan.slots
    assert chunked(plan, 8) is cut, "one for all layers"
    first = AttentionPlan.build([1], [9], [[1, 2, 3]], page_size=4)
    assert (chunked(first, 8).context_lens, chunked(first, 8).pages) == ((1,), ([3],))


def test_the_published_configuration(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, TEXT))
    kinds = config.attention
    assert [layer.rotates for layer in kinds[:5]] == [True, True, True, False, True]
    assert [layer.chunk for layer in kinds[:5]] == [8192, 8192, 8192, 0, 8192]
    assert [layer.normalizes for layer in kinds[:4]] == [True, True, True, False]
    assert kinds[3].growth == QueryGrowth(8192, 0.1)
    assert config.intermediate_size == 16384
    assert config.experts is not None
    assert (config.experts.layers, config.experts.intermediate_size) == (frozenset(range(48)), 8192)


def test_the_text_model_of_a_multimodal_checkpoint(tmp_path: Path) -> None:
    """As Llama-4-Maverick states it: experts in every second layer, and no norm of queries and keys."""
    text = TEXT | {"interleave_moe_layer_step": 2, "num_local_experts": 128, "use_qk_norm": False}
    values = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": text | {"attn_temperature_tuning": False},
        "torch_dtype": "bfloat16",
        "eos_token_id": [1, 2],
    }
    config = load_config(write(tmp_path, values))
    assert config.experts is not None
    assert config.experts.layers == frozenset(range(1, 48, 2))
    assert config.eos_token_ids == (1, 2)
    assert {(layer.normalizes, layer.growth) for layer in config.attention} == {(False, None)}
    with pytest.raises(CheckpointError, match="text_config is missing"):
        load_config(write(tmp_path, values | {"text_config": None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_chunk_size": 100}, "attention_chunk_size 100 is not served, only multiples of 16"),
        ({"no_rope_layers": [1, 0]}, "layer_types or no_rope_layers name fewer than the 48 layers"),
        ({"layer_types": ["sliding_attention"] * 48}, "layer_types 'sliding_attention' is not served"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok 17 is more than the 16 experts"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attn_temperature_tuning": "yes"}, "attn_temperature_tuning must be"),
    ],
)
def test_what_is_not_served_is_refused_by_field(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        load_config(write(tmp_path, TEXT | changes))

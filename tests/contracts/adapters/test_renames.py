"""Adapters with transformers' names fit checkpoints whose modules have other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from contracts.adapters.config import AdapterConfigError
from contracts.adapters.renames import NO_RENAMES, Renames, renames_of
from tests.contracts.adapters.adapter_checks import Shape, check, pair

RULES: Final = Renames(
    [
        ("mlp", "ffn"),
        ("self_attn.q_proj", "attn.wq_a"),
        ("layers.*.norms.*.scale", "layers.*.norm_*"),
        ("lm_head", "head"),
    ]
)


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [
        ("layers.3.mlp.gate", "layers.3.ffn.gate"),
        ("layers.12.self_attn.q_proj", "layers.12.attn.wq_a"),
        ("layers.12.self_attn.k_proj", "layers.12.self_attn.k_proj"),
        ("layers.3.mlp_norm", "layers.3.mlp_norm"),
        ("lm_head", "head"),
        ("mlp", "ffn"),
    ],
)
def test_the_longest_rule_applies_to_whole_segments_and_keeps_numbers(name: str, checkpoint: str) -> None:
    assert RULES.checkpoint_name(name) == checkpoint
    assert NO_RENAMES.checkpoint_name(name) == name


def test_an_architecture_without_rules_has_transformers_names() -> None:
    assert renames_of("LlamaForCausalLM").checkpoint_name("layers.0.mlp") == "layers.0.mlp"
    assert renames_of("no such class").checkpoint_name("layers.0.mlp") == "layers.0.mlp"


BASE: Final[Mapping[str, Shape]] = {
    "layers.0.attn.wq_a.weight": (6, 8),
    "layers.0.ffn.gate.weight": (2, 8),
    "layers.0.ffn.shared_experts.w1.weight": (10, 8),
    **{f"layers.0.ffn.experts.{number}.w{part}.weight": (10, 8) for number in range(2) for part in (1, 3)},
    **{f"layers.0.ffn.experts.{number}.w2.weight": (8, 10) for number in range(2)},
}
"""A layer with DeepSeek-V4's names."""


def test_modules_experts_and_routers_of_a_renamed_architecture_are_found() -> None:
    path = "model.layers.0.mlp."
    tensors = {
        **pair(f"{path}shared_experts.gate_proj", 10, 8),
        **pair(f"{path}gate", 2, 8),
        **pair(f"{path}experts", 8, 10, 2 * 2),
    }
    options: dict[str, Any] = {
        "target_modules": ["gate_proj", "gate"],
        "target_parameters": ["experts.down_proj"],
        "rank_pattern": {r"layers\.0\.mlp\.experts\.down_proj": 2},
    }
    _, modules = check(tensors, BASE, architecture="DeepseekV4ForCausalLM", **options)
    assert sorted(modules) == [
        "layers.0.ffn.experts.down_proj",
        "layers.0.ffn.gate",
        "layers.0.ffn.shared_experts.w1",
    ]
    with pytest.raises(AdapterConfigError, match="the base model has no module"):
        check(tensors, BASE, architecture="LlamaForCausalLM", **options)


def test_no_names_of_an_adapter_outlive_it() -> None:
    architecture = "DeepseekV4ForCausalLM"
    tensors = pair("model.layers.0.mlp.gate", 2, 8)
    config, _ = check(tensors, BASE, architecture=architecture, target_modules=["gate"])
    assert config.layout.renames is not renames_of(architecture)

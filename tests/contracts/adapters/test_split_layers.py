"""Adapters on layers that transformers splits and the checkpoint fuses are checked against the parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from contracts.adapters.config import AdapterConfigError
from contracts.adapters.needs import adapter_needs
from contracts.adapters.split_layers import split_layers
from contracts.capabilities.traits import Trait
from tests.contracts.adapters.adapter_checks import RANK, Shape, check, pair

MOLMO: Final = "Molmo2ForConditionalGeneration"
BLOCK: Final = "model.transformer.blocks.0."
MOLMO_BASE: Final[Mapping[str, Shape]] = {
    "model.transformer.wte.embedding.weight": (30, 8),
    "model.transformer.wte.new_embedding.weight": (2, 8),
    f"{BLOCK}self_attn.att_proj.weight": (20, 8),
    f"{BLOCK}self_attn.attn_out.weight": (8, 12),
    f"{BLOCK}mlp.ff_proj.weight": (24, 8),
}
"""A block with twelve rows of queries, and four each of keys and values."""
LAYER: Final = "model.language_model.layers.0."


def whole(base: Mapping[str, Shape], architecture: str) -> dict[str, Shape]:
    return {**base, **split_layers(base, architecture)}


@pytest.mark.parametrize(
    ("kind", "rows"), [("self_attn.q_proj", 12), ("self_attn.k_proj", 4), ("self_attn.v_proj", 4)]
)
def test_parts_of_fused_attention_have_their_own_rows(kind: str, rows: int) -> None:
    base, targets = whole(MOLMO_BASE, MOLMO), [kind.rpartition(".")[2]]
    check(pair(f"{LAYER}{kind}", rows, 8), base, architecture=MOLMO, target_modules=targets)
    with pytest.raises(AdapterConfigError, match=rf"expected \[{rows}, {RANK}\]"):
        check(pair(f"{LAYER}{kind}", rows + 4, 8), base, architecture=MOLMO, target_modules=targets)


def test_halves_of_a_fused_mlp_are_no_module_without_the_architecture() -> None:
    tensors = {**pair(f"{LAYER}mlp.gate_proj", 12, 8), **pair(f"{LAYER}mlp.up_proj", 12, 8)}
    targets = ["gate_proj", "up_proj"]
    config, modules = check(tensors, whole(MOLMO_BASE, MOLMO), architecture=MOLMO, target_modules=targets)
    needs = adapter_needs(config, modules, whole(MOLMO_BASE, MOLMO), split_layers(MOLMO_BASE, MOLMO))
    assert needs.traits == {Trait.SPLIT_PROJECTIONS}
    with pytest.raises(AdapterConfigError, match="has no module"):
        check(tensors, whole(MOLMO_BASE, "LlamaForCausalLM"), target_modules=targets)


def test_an_adapter_on_the_fused_layer_itself_needs_no_split() -> None:
    tensors, base = pair(f"{BLOCK}mlp.ff_proj", 24, 8), whole(MOLMO_BASE, MOLMO)
    config, modules = check(tensors, base, architecture=MOLMO, target_modules=["ff_proj"])
    assert adapter_needs(config, modules, base, split_layers(MOLMO_BASE, MOLMO)).traits == frozenset()


def test_an_embedding_in_two_parameters_has_the_rows_of_both() -> None:
    path = "model.language_model.embed_tokens"
    tensors = {f"{path}.lora_embedding_A": (RANK, 32), f"{path}.lora_embedding_B": (8, RANK)}
    base = whole(MOLMO_BASE, MOLMO)
    check(tensors, base, architecture=MOLMO, target_modules=["embed_tokens"])
    tensors[f"{path}.lora_embedding_A"] = (RANK, 30)
    with pytest.raises(AdapterConfigError, match=rf"expected \[{RANK}, 32\]"):
        check(tensors, base, architecture=MOLMO, target_modules=["embed_tokens"])


@pytest.mark.parametrize("rows", [11, 12, 13])
def test_rows_that_do_not_fit_the_output_projection_are_not_split(rows: int) -> None:
    base = {**MOLMO_BASE, f"{BLOCK}self_attn.att_proj.weight": (rows, 8)}
    assert not [name for name in split_layers(base, MOLMO) if "self_attn" in name]


def test_a_rule_needs_an_even_number_of_rows() -> None:
    base = {**MOLMO_BASE, f"{BLOCK}mlp.ff_proj.weight": (25, 8)}
    assert not [name for name in split_layers(base, MOLMO) if "mlp" in name]


def test_a_granites_stacks_are_named_as_experts() -> None:
    base: dict[str, Shape] = {
        "model.layers.0.block_sparse_moe.input_linear.weight": (3, 24, 8),
        "model.layers.0.block_sparse_moe.output_linear.weight": (3, 8, 12),
    }
    path = "model.layers.0.block_sparse_moe.experts"
    tensors = {**pair(f"{path}.base_layer", 8, 24, 3 * RANK), **pair(path, 12, 8, 3 * RANK)}
    options = {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
    base = whole(base, "GraniteMoeForCausalLM")
    _, modules = check(tensors, base, architecture="GraniteMoeForCausalLM", **options)
    assert sorted(modules) == [f"{path}.down_proj", f"{path}.gate_up_proj"]
    tensors = {**pair(f"{path}.base_layer", 8, 24, 3 * RANK), **pair(path, 12, 9, 3 * RANK)}
    with pytest.raises(AdapterConfigError, match="has shape"):
        check(tensors, base, architecture="GraniteMoeForCausalLM", **options)


def test_ernies_experts_are_half_for_text_and_half_for_images() -> None:
    name = "Ernie4_5_VLMoeForConditionalGeneration"
    base = {
        f"model.layers.0.mlp.experts.{number}.down_proj.weight": (8, 6 if number < 2 else 4)
        for number in range(4)
    }
    found = split_layers(base, name)
    assert found == {
        f"model.layers.0.mlp.{group}_moe.experts.{number}.down_proj.weight": (8, inner)
        for group, inner in (("text", 6), ("vision", 4))
        for number in range(2)
    }


def test_other_architectures_have_no_split_layers() -> None:
    assert split_layers(MOLMO_BASE, "LlamaForCausalLM") == {}

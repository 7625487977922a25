"""Adapters are compared with their base model by common names, whatever class they were trained with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.adapters.bundled_worker import refuse_unserved
from contracts.adapters.config import AdapterConfigError, LoraConfig
from contracts.adapters.module_names import LAYOUTS, PLAIN, WITHOUT_HEAD, Layout
from contracts.adapters.needs import adapter_needs
from contracts.adapters.tensors import Modules, absent_names, max_rank, sort_tensors
from contracts.capabilities.traits import Trait

Q, V = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"
TOWER = "vision_tower.encoder.layers.0.self_attn.q_proj"
BASE = {
    f"{Q}.weight": (8, 4),
    f"{V}.weight": (6, 4),
    f"{TOWER}.weight": (4, 4),
    "vision_tower.post_layernorm.weight": (4,),
    "model.norm.weight": (4,),
    "model.embed_tokens.weight": (16, 4),
    "lm_head.weight": (16, 4),
}
EVERY = pytest.mark.parametrize(
    "layout",
    [PLAIN, *LAYOUTS, WITHOUT_HEAD],
    ids=["plain", "older", "newer", "vision-without-head", "without-head"],
)


def sorted_by(layout: Layout, ranks: dict[str, int], **fields: Any) -> tuple[LoraConfig, Modules]:
    """Sort an adapter whose trainer called the modules as `layout` does; `ranks` are by common name."""
    tensors: dict[str, tuple[int, ...]] = {}
    for name, rank in ranks.items():
        out, inner = BASE[f"{name}.weight"]
        path = f"base_model.model.{layout.path_of(name)}"
        tensors |= {f"{path}.lora_A.weight": (rank, inner), f"{path}.lora_B.weight": (out, rank)}
    value = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj", "v_proj"]} | fields
    config = LoraConfig.from_bytes(json.dumps(value).encode()).for_tensors(tensors)
    return config, sort_tensors(config, tensors, BASE)


@EVERY
def test_each_layout_leads_to_the_same_modules(layout: Layout) -> None:
    config, modules = sorted_by(layout, {Q: 2, V: 2})
    assert set(modules) == {Q, V}
    assert absent_names(config, BASE) == []


@EVERY
def test_patterns_are_of_the_trainers_names(layout: Layout) -> None:
    """As PEFT matches them: against the paths in the class that was trained."""
    fields = {
        "target_modules": rf"{layout.body}layers\.\d+\.self_attn\.(q_proj|v_proj)".replace(
            ".layers", r"\.layers"
        ),
        "rank_pattern": {layout.path_of(V): 3},
        "alpha_pattern": {layout.path_of(V): 9},
    }
    config, modules = sorted_by(layout, {Q: 2, V: 3}, **fields)
    assert max_rank(config, modules) == 3
    assert (config.scaling_of(Q), config.scaling_of(V)) == (1.0, 3.0)


@EVERY
def test_a_pattern_of_another_layout_matches_nothing(layout: Layout) -> None:
    others = [other for other in (PLAIN, *LAYOUTS) if other is not layout]
    for other in others:
        with pytest.raises(AdapterConfigError, match="target_modules does not name"):
            sorted_by(layout, {Q: 2}, target_modules="^" + other.path_of(Q).replace(".", r"\.") + "$")


@EVERY
def test_lora_on_a_vision_tower_is_for_other_engines(layout: Layout) -> None:
    config, modules = sorted_by(layout, {Q: 2, V: 2, TOWER: 2})
    assert adapter_needs(config, modules, BASE).traits == {Trait.VISION}
    with pytest.raises(AdapterConfigError, match="of the language model"):
        refuse_unserved(config, modules, BASE)


def test_replaced_norms_of_a_vision_tower_are_for_other_engines() -> None:
    name = "base_model.model.vision_tower.post_layernorm.weight"
    value = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "modules_to_save": ["post_layernorm"]}
    config = LoraConfig.from_bytes(json.dumps(value).encode())
    modules = sort_tensors(config, {name: (4,)}, BASE)
    assert adapter_needs(config, modules, BASE).traits == {Trait.SAVED_MODULES, Trait.VISION}
    with pytest.raises(AdapterConfigError, match="modules_to_save 'post_layernorm' is not served"):
        refuse_unserved(config, modules, BASE)

"""Adapters of every layout are checked against their base, and say what an engine must serve."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from contracts.adapters.bundled_worker import refuse_unserved
from contracts.adapters.config import AdapterConfigError, LoraConfig
from contracts.adapters.needs import adapter_needs
from contracts.adapters.tensors import Modules, sort_tensors
from contracts.capabilities.traits import Trait
from contracts.capabilities.worker import TRAITS

Shape = tuple[int, ...]
Tensors = dict[str, Shape]
RANK: Final = 2
PREFIX: Final = "base_model.model."
LAYER: Final = "model.layers.0."
BASE: Final[Mapping[str, Shape]] = {
    "model.embed_tokens.weight": (64, 8),
    "lm_head.weight": (64, 8),
    f"{LAYER}self_attn.q_proj.weight": (16, 8),
    f"{LAYER}self_attn.kv_a_proj_with_mqa.weight": (12, 8),
    f"{LAYER}self_attn.qkv_proj.weight": (24, 8),
    f"{LAYER}self_attn.kv_b_proj.weight": (22, 8),
    f"{LAYER}linear_attn.in_proj_qkvz.weight": (20, 8),
    f"{LAYER}mixer.in_proj.weight": (28, 8),
    f"{LAYER}mlp.gate.weight": (3, 8),
    f"{LAYER}mlp.shared_expert.up_proj.weight": (10, 8),
    **{f"{LAYER}mlp.experts.{number}.up_proj.weight": (6, 8) for number in range(3)},
    **{f"{LAYER}mlp.experts.{number}.down_proj.weight": (8, 6) for number in range(3)},
    "model.layers.1.mlp.experts.gate_up_proj.weight": (3, 20, 8),
    "model.layers.1.mlp.experts.down_proj.weight": (3, 8, 10),
    "vision_tower.blocks.0.fc1.weight": (14, 8),
    "vision_tower.patch_embed.proj.weight": (14, 3, 4, 4),
}


@dataclass(frozen=True)
class Case:
    """An adapter's tensors without PEFT's prefix, and what it needs."""

    tensors: Mapping[str, Shape]
    traits: frozenset[Trait]
    options: Mapping[str, Any] = field(default_factory=dict)


def pair(path: str, out: int, inner: int, rank: int = RANK) -> Tensors:
    return {f"{path}.lora_A.weight": (rank, inner), f"{path}.lora_B.weight": (out, rank)}


def on(path: str, out: int, inner: int, *traits: Trait) -> Case:
    return Case(pair(path, out, inner), frozenset(traits), {"target_modules": [path.rpartition(".")[2]]})


CASES: Final = {
    "attention": on(f"{LAYER}self_attn.q_proj", 16, 8),
    "latent attention": on(f"{LAYER}self_attn.kv_a_proj_with_mqa", 12, 8, Trait.LATENT_ATTENTION),
    "absorbed": on(f"{LAYER}self_attn.kv_b_proj", 22, 8, Trait.ABSORBED_PROJECTION),
    "fused": on(f"{LAYER}self_attn.qkv_proj", 24, 8, Trait.FUSED_PROJECTIONS),
    "linear attention": on(f"{LAYER}linear_attn.in_proj_qkvz", 20, 8, Trait.LINEAR_ATTENTION),
    "state space": on(f"{LAYER}mixer.in_proj", 28, 8, Trait.STATE_SPACE),
    "router": on(f"{LAYER}mlp.gate", 3, 8, Trait.ROUTER),
    "shared expert": on(f"{LAYER}mlp.shared_expert.up_proj", 10, 8, Trait.SHARED_EXPERTS),
    "expert": on(f"{LAYER}mlp.experts.2.up_proj", 6, 8, Trait.EXPERTS),
    "expert of a stack": on("model.layers.1.mlp.experts.2.down_proj", 8, 10, Trait.EXPERTS),
    "vision": on("vision_tower.blocks.0.fc1", 14, 8, Trait.VISION),
    "stacked experts": Case(
        pair("model.layers.1.mlp.experts", 8, 10, 3 * RANK),
        frozenset({Trait.STACKED_EXPERTS}),
        {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"]},
    ),
    "two stacked parameters": Case(
        {
            **pair("model.layers.1.mlp.experts", 8, 10, 3 * RANK),
            **pair("model.layers.1.mlp.experts.base_layer", 20, 8, 3 * RANK),
        },
        frozenset({Trait.STACKED_EXPERTS}),
        {"target_modules": [], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
    ),
    "convolution": Case(
        {
            "vision_tower.patch_embed.proj.lora_A.weight": (RANK, 3, 4, 4),
            "vision_tower.patch_embed.proj.lora_B.weight": (14, RANK, 1, 1),
        },
        frozenset({Trait.VISION}),
        {"target_modules": ["proj"]},
    ),
    "classification": Case(
        {**pair(f"{LAYER}self_attn.q_proj", 16, 8), "score.weight": (5, 8)},
        frozenset({Trait.CLASSIFICATION, Trait.SAVED_MODULES}),
        {"target_modules": ["q_proj"], "modules_to_save": ["score"], "task_type": "SEQ_CLS"},
    ),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def read(tensors: Mapping[str, Shape], options: Mapping[str, Any]) -> tuple[LoraConfig, Modules]:
    """Check an adapter as registration does."""
    value = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, **options}
    named = {f"{PREFIX}{name}": shape for name, shape in tensors.items()}
    config = LoraConfig.from_bytes(json.dumps(value).encode()).for_tensors(named, BASE)
    return config, sort_tensors(config, named, BASE)


@EVERY
def test_its_traits_are_those_of_its_modules(case: Case) -> None:
    config, modules = read(case.tensors, case.options)
    needs = adapter_needs(config, modules, BASE)
    assert (needs.rank, needs.traits) == (RANK, case.traits)


@EVERY
def test_the_bundled_worker_refuses_by_name_what_it_does_not_serve(case: Case) -> None:
    config, modules = read(case.tensors, case.options)
    if case.traits <= TRAITS:
        refuse_unserved(config, modules, BASE)
        return
    with pytest.raises(AdapterConfigError, match=r"is not served|task_type must be"):
        refuse_unserved(config, modules, BASE)


def transposed(tensors: Tensors, name: str) -> Tensors:
    return {**tensors, name: tensors[name][::-1]}


def of_other_rank(tensors: Tensors, name: str) -> Tensors:
    axis = 0 if "lora_A" in name else 1
    shape = list(tensors[name])
    shape[axis] += 1
    return {**tensors, name: tuple(shape)}


def of_other_size(tensors: Tensors, name: str) -> Tensors:
    axis = 1 if "lora_A" in name else 0
    shape = list(tensors[name])
    shape[axis] += 1
    return {**tensors, name: tuple(shape)}


def without(tensors: Tensors, name: str) -> Tensors:
    return {key: shape for key, shape in tensors.items() if key != name}


def renamed(tensors: Tensors, name: str) -> Tensors:
    return {**without(tensors, name), name.replace("lora_", "absent.lora_"): tensors[name]}


@EVERY
@pytest.mark.parametrize("mutate", [transposed, of_other_rank, of_other_size, without, renamed])
def test_a_file_that_does_not_fit_its_base_is_refused(
    case: Case, mutate: Callable[[Tensors, str], Tensors]
) -> None:
    for name in [name for name in case.tensors if ".lora_" in name]:
        mutated = mutate(dict(case.tensors), name)
        with pytest.raises(AdapterConfigError):
            read(mutated, case.options)


def test_an_expert_beyond_the_base_s_is_refused() -> None:
    for path in (f"{LAYER}mlp.experts.3.up_proj", "model.layers.1.mlp.experts.3.down_proj"):
        case = on(path, 6, 8) if "up_proj" in path else on(path, 8, 10)
        with pytest.raises(AdapterConfigError, match="the base model has no module"):
            read(case.tensors, case.options)


def test_halves_of_two_experts_layers_are_no_pair() -> None:
    tensors = {
        "model.layers.1.mlp.experts.lora_A.weight": (3 * RANK, 8),
        "model.layers.1.mlp.experts.lora_B.weight": (8, 3 * RANK),
    }
    with pytest.raises(AdapterConfigError, match="expected the two sizes"):
        read(tensors, {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"]})


@pytest.mark.parametrize(
    "part", ["vision_tower", "visual", "mtp", "draft", "talker", "encoder", "vision_model"]
)
def test_another_part_of_a_model_is_not_the_language_model(part: str) -> None:
    for prefix in (f"{part}.", f"{part}.transformer.", f"model.{part}."):
        with pytest.raises(AdapterConfigError, match="the base model has no module"):
            read(pair(f"{prefix}layers.0.self_attn.q_proj", 16, 8), {"target_modules": ["q_proj"]})


def test_long_names_are_refused_before_they_are_read() -> None:
    name = "x" + ".base_layer" * 100_000
    with pytest.raises(AdapterConfigError, match="more than 1000 characters"):
        read({name: (2, 8)}, {"target_modules": ["q_proj"]})


def test_two_names_of_one_module_are_refused() -> None:
    stack = "model.layers.1.mlp.experts"
    tensors = {**pair(f"{stack}.1.down_proj", 8, 10), **pair(f"{stack}.1.w2", 8, 10)}
    with pytest.raises(AdapterConfigError, match="is the same module"):
        read(tensors, {"target_modules": ["down_proj", "w2"]})


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"score.bias": (5,)}, r"score\.weight is missing"),
        ({"score.weight": (5, 8), "score.bias": (4,)}, "shape"),
    ],
)
def test_a_head_is_whole(head: Tensors, message: str) -> None:
    options = {"target_modules": ["q_proj"], "modules_to_save": ["score"], "task_type": "SEQ_CLS"}
    with pytest.raises(AdapterConfigError, match=message):
        read({**pair(f"{LAYER}self_attn.q_proj", 16, 8), **head}, options)


def test_a_weight_without_its_suffix_is_not_for_the_worker() -> None:
    options = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    tensors = {**pair(f"{LAYER}self_attn.q_proj", 16, 8), "lm_head": (64, 8), "lm_head.weight": (64, 8)}
    with pytest.raises(AdapterConfigError):
        refuse_unserved(*read(tensors, options), BASE)

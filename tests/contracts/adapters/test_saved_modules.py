"""Replaced modules inside containers and without a suffix, and files that lack a part of what they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from contracts.adapters.config import AdapterConfigError
from contracts.adapters.needs import adapter_needs
from contracts.capabilities.traits import Trait
from tests.contracts.adapters.adapter_checks import Shape, Tensors, check, pair

RANK: Final = 4
LAYER: Final = "model.layers.0."
BASE: Final[Mapping[str, Shape]] = {
    "model.embed_tokens.weight": (64, 8),
    f"{LAYER}self_attn.q_proj.weight": (16, 8),
    f"{LAYER}mlp.up_proj.weight": (12, 8),
    f"{LAYER}mlp.up_proj.bias": (12,),
    f"{LAYER}mlp.down_proj.weight": (8, 12),
    f"{LAYER}mixer.A_log.weight": (6,),
    f"{LAYER}mixer.conv1d.weight": (32, 1, 4),
    f"{LAYER}mixer.conv1d.bias": (32,),
    f"{LAYER}mixer.in_proj.weight": (20, 8),
    "model.layers.1.mlp.experts.gate_up_proj.weight": (3, 20, 8),
    "model.layers.1.mlp.experts.down_proj.weight": (3, 8, 10),
    **{
        f"model.layers.2.mlp.experts.{number}.w{part}.weight": shape
        for number in range(3)
        for part, shape in ((1, (10, 8)), (2, (8, 10)), (3, (10, 8)))
    },
    "model.layers.2.mlp.gate.weight": (3, 8),
}
CONTAINERS: Final[Mapping[str, tuple[str, Tensors]]] = {
    "mlp": (
        "mlp",
        {
            f"{LAYER}mlp.up_proj.weight": (12, 8),
            f"{LAYER}mlp.up_proj.bias": (12,),
            f"{LAYER}mlp.down_proj.weight": (8, 12),
        },
    ),
    "mixer": (
        "mixer",
        {
            f"{LAYER}mixer.A_log": (6,),
            f"{LAYER}mixer.conv1d.weight": (32, 1, 4),
            f"{LAYER}mixer.conv1d.bias": (32,),
            f"{LAYER}mixer.in_proj.weight": (20, 8),
        },
    ),
    "stacked experts": (
        "experts",
        {
            "model.layers.1.mlp.experts.gate_up_proj": (3, 20, 8),
            "model.layers.1.mlp.experts.down_proj": (3, 8, 10),
        },
    ),
    "experts that the base holds one by one": (
        "experts",
        {
            "model.layers.2.mlp.experts.gate_up_proj": (3, 20, 8),
            "model.layers.2.mlp.experts.down_proj": (3, 8, 10),
        },
    ),
}


@pytest.mark.parametrize(("name", "tensors"), CONTAINERS.values(), ids=CONTAINERS)
def test_a_container_is_replaced_with_all_that_is_in_it(name: str, tensors: Tensors) -> None:
    config, modules = check(tensors, BASE, target_modules=[], modules_to_save=[name])
    assert Trait.SAVED_MODULES in adapter_needs(config, modules, BASE).traits
    for tensor, shape in tensors.items():
        wrong = {**tensors, tensor: (*shape[:-1], shape[-1] + 1)}
        with pytest.raises(AdapterConfigError, match="has shape"):
            check(wrong, BASE, target_modules=[], modules_to_save=[name])
    with pytest.raises(AdapterConfigError, match="modules_to_save does not name"):
        check(tensors, BASE, target_modules=[], modules_to_save=["other"])


def test_a_head_may_be_a_container() -> None:
    head = {
        "classifier.dense.weight": (8, 8),
        "classifier.dense.bias": (8,),
        "classifier.out_proj.weight": (3, 8),
        "classifier.out_proj.bias": (3,),
    }
    tensors = {**pair(f"{LAYER}self_attn.q_proj", 16, 8, RANK), **head}
    options: dict[str, Any] = {"target_modules": ["q_proj"], "modules_to_save": ["classifier"]}
    check(tensors, BASE, task_type="SEQ_CLS", **options)
    with pytest.raises(AdapterConfigError, match="has shape"):
        check({**tensors, "classifier.dense.weight": (8, 9)}, BASE, task_type="SEQ_CLS", **options)


def test_a_name_inside_another_word_is_not_a_container() -> None:
    with pytest.raises(AdapterConfigError, match="modules_to_save does not name"):
        check({f"{LAYER}mlp.up_proj.weight": (12, 8)}, BASE, target_modules=[], modules_to_save=["ml"])


STACK: Final = "model.layers.1.mlp.experts"
TWO: Final = {**pair(STACK, 8, 10, 3 * RANK), **pair(f"{STACK}.base_layer", 20, 8, 3 * RANK)}
PARAMETERS: Final = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@pytest.mark.parametrize("left_out", TWO)
def test_a_targeted_parameter_has_both_of_its_matrices(left_out: str) -> None:
    check(TWO, BASE, target_modules=[], target_parameters=PARAMETERS)
    tensors = {name: shape for name, shape in TWO.items() if name != left_out}
    with pytest.raises(AdapterConfigError, match="is missing"):
        check(tensors, BASE, target_modules=[], target_parameters=PARAMETERS)


@pytest.mark.parametrize("layer", [1, 2], ids=["stacked", "one by one"])
def test_a_targeted_parameter_without_its_pair_is_refused(layer: int) -> None:
    parameters = [f"{layer}.mlp.experts.down_proj", "gate.weight"]
    tensors = pair(f"model.layers.{layer}.mlp.experts", 8, 10, 3 * RANK)
    with pytest.raises(AdapterConfigError, match=r"target_parameters names 'gate\.weight'"):
        check(tensors, BASE, target_modules=[], target_parameters=parameters)
    router = pair("model.layers.2.mlp.gate", 3, 8, RANK)
    check({**tensors, **router}, BASE, target_modules=[], target_parameters=parameters)
    with pytest.raises(AdapterConfigError, match=r"target_parameters names .*down_proj"):
        check(router, BASE, target_modules=[], target_parameters=parameters)


CONV: Final = f"{LAYER}mixer.conv1d"


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        ((RANK, 1, 4), (32, RANK, 1), True),
        ((RANK, 32, 4), (32, RANK, 1), True),
        ((RANK, 31, 4), (32, RANK, 1), False),
        ((RANK, 16, 4), (32, RANK, 1), False),
        ((RANK, 32, 4), (32, 1, 1), False),
    ],
    ids=["plain", "depthwise of earlier PEFT", "another width", "half of the width", "groups of one rank"],
)
def test_depthwise_convolutions_of_earlier_versions_of_peft(first: Shape, second: Shape, fits: bool) -> None:
    tensors = {f"{CONV}.lora_A.weight": first, f"{CONV}.lora_B.weight": second}
    if fits:
        check(tensors, BASE, target_modules=["conv1d"])
        return
    with pytest.raises(AdapterConfigError):
        check(tensors, BASE, target_modules=["conv1d"])


@pytest.mark.parametrize(("out", "inner"), [(8, 10), (10, 8)], ids=["as stored", "transposed"])
def test_dora_of_a_single_expert_follows_its_pair(out: int, inner: int) -> None:
    """A stack does not tell the order of its dimensions."""
    path = f"{STACK}.1.down_proj"
    tensors = {**pair(path, out, inner, RANK), f"{path}.lora_magnitude_vector": (out,)}
    check(tensors, BASE, target_modules=["down_proj"], use_dora=True)
    wrong = {**tensors, f"{path}.lora_magnitude_vector": (inner,)}
    with pytest.raises(AdapterConfigError, match="magnitude"):
        check(wrong, BASE, target_modules=["down_proj"], use_dora=True)

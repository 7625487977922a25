"""Each projection of an expert is changed once, as a part of a stack or by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from contracts.adapters.bundled_worker import refuse_unserved
from contracts.adapters.config import AdapterConfigError
from contracts.adapters.experts import doubled_experts
from contracts.adapters.needs import adapter_needs
from contracts.capabilities.traits import Trait
from contracts.capabilities.worker import SPARSE_TRAITS
from tests.contracts.adapters.adapter_checks import RANK, Shape, check, pair

HOLDER: Final = "model.layers.0.mlp.experts"
STACKS: Final[Mapping[str, Shape]] = {
    f"{HOLDER}.gate_up_proj.weight": (2, 20, 8),
    f"{HOLDER}.down_proj.weight": (2, 8, 10),
}
SINGLES: Final[Mapping[str, Shape]] = {
    f"{HOLDER}.{number}.{layer}.weight": shape
    for number in range(2)
    for layer, shape in {"gate_proj": (10, 8), "up_proj": (10, 8), "down_proj": (8, 10)}.items()
}


@pytest.mark.parametrize("base", [STACKS, SINGLES], ids=["stacks", "singles"])
@pytest.mark.parametrize(
    ("parameter", "stack", "single"),
    [
        ("down_proj", pair(HOLDER, 8, 10, 2 * RANK), pair(f"{HOLDER}.0.down_proj", 8, 10)),
        ("gate_up_proj", pair(HOLDER, 20, 8, 2 * RANK), pair(f"{HOLDER}.1.up_proj", 10, 8)),
    ],
)
def test_a_stack_and_one_of_its_experts_are_refused(
    base: Mapping[str, Shape], parameter: str, stack: Mapping[str, Shape], single: Mapping[str, Shape]
) -> None:
    options: dict[str, Any] = {
        "target_parameters": [f"experts.{parameter}"],
        "target_modules": ["up_proj", "down_proj"],
    }
    only_parameters: dict[str, Any] = {"target_parameters": options["target_parameters"]}
    assert list(check(stack, base, **only_parameters)[1]) == [f"{HOLDER}.{parameter}"]
    with pytest.raises(AdapterConfigError, match="changes the same experts"):
        check({**stack, **single}, base, **options)


@pytest.mark.parametrize("number", ["00", "2", "\u0661", "1000000"])
def test_an_experts_number_is_that_of_the_base(number: str) -> None:
    tensors = pair(f"{HOLDER}.{number}.down_proj", 8, 10)
    with pytest.raises(AdapterConfigError, match="the base model has no module"):
        check(tensors, STACKS, target_modules=["down_proj"])


@pytest.mark.parametrize("base", [STACKS, SINGLES], ids=["stacks", "singles"])
def test_a_list_of_experts_holds_single_experts(base: Mapping[str, Shape]) -> None:
    """As trainers name them that split GPT-OSS' stacks."""
    tensors = pair(f"{HOLDER}.gate_up_projs.1", 20, 8) | pair(f"{HOLDER}.down_projs.0", 8, 10)
    options: dict[str, Any] = {"target_modules": r".*\.(gate_up|down)_projs\.\d"}
    config, modules = check(tensors, base, **options)
    assert sorted(modules) == [f"{HOLDER}.0.down_proj", f"{HOLDER}.1.gate_up_proj"]
    assert adapter_needs(config, modules, base).traits == {Trait.EXPERTS}
    refuse_unserved(config, modules, base, SPARSE_TRAITS)
    with pytest.raises(AdapterConfigError, match="the base model has no module"):
        check(pair(f"{HOLDER}.gate_up_projs.2", 20, 8), base, **options)
    with pytest.raises(AdapterConfigError, match="is the same module"):
        check(tensors | pair(f"{HOLDER}.1.gate_up_proj", 20, 8), base, target_modules=r".*")


def test_projections_are_compared_by_layer_and_by_what_they_hold() -> None:
    stack, other = f"{HOLDER}.gate_up_proj", "model.layers.1.mlp.experts"
    assert doubled_experts([f"{HOLDER}.1.w1", stack]) == (stack, f"{HOLDER}.1.w1")
    assert doubled_experts([stack, f"{HOLDER}.gate_proj"]) == (stack, f"{HOLDER}.gate_proj")
    assert doubled_experts([stack, f"{HOLDER}.0.down_proj", f"{other}.0.up_proj", "model.norm"]) is None

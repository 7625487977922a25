"""Changes of one expert that no engine serves are named, however the base holds its experts."""

from __future__ import annotations

import pytest

from contracts.adapters.needs import module_traits
from contracts.adapters.parts import Part, Shape
from contracts.capabilities.traits import Trait

MODULE = "model.layers.0.mlp.experts.1.down_proj"


@pytest.mark.parametrize("base", [{}, {f"{MODULE}.weight": (8, 4)}], ids=["stacked", "single"])
@pytest.mark.parametrize("part", [Part.LORA_BIAS, Part.MAGNITUDE, Part.WEIGHT, Part.BIAS])
def test_a_change_of_one_expert_beyond_its_pair_is_another_change(part: Part, base: dict[str, Shape]) -> None:
    pair = {Part.A: "a", Part.B: "b"} if part in (Part.LORA_BIAS, Part.MAGNITUDE) else {}
    assert Trait.OTHER_CHANGES in module_traits(MODULE, {**pair, part: "c"}, base)
    assert Trait.OTHER_CHANGES not in module_traits(MODULE, {Part.A: "a", Part.B: "b"}, base)

"""`presets`: what its order may say, and that all recipes are carried out before they are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contracts.recipes.recipe import Preset
from contracts.recipes.spec_fields import SpecError, SpecFields
from optimizer.measurement.presets import PHASES, PresetsOrder
from tests.conftest import ROOT


def read(**fields: Any) -> PresetsOrder:
    return PresetsOrder(SpecFields("", {"version": 1, "source": "model", **fields}))


def test_every_preset_is_an_arm_beside_the_original() -> None:
    order = read(load={"concurrency": [2]}, price={"hour": 1})
    served = {
        name: {"model": f"out/{name}", "flags": order.recipes[name].worker_flags(), "environment": {"A": "b"}}
        for name in Preset
    }
    compared = order.comparison(served)
    assert [arm.name for arm in compared.arms] == ["original", *Preset]
    assert compared.arms[2].flags == ("--speculation", "ngram", "--speculation-tokens", "4")
    assert compared.load.concurrency == (2,)
    assert order.run(Preset.BALANCED).source == Path("model")
    assert len(PHASES) == 4 * len(Preset) + 4


@pytest.mark.parametrize("file", ["presets.json", "question_answering.json"])
def test_the_stored_orders_can_be_carried_out(file: str) -> None:
    order = PresetsOrder(SpecFields.load(ROOT / "benchmarks" / "optimization" / file))
    assert order.source == Path("var/models/smollm2-135m-instruct")
    assert set(order.recipes) == set(Preset)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"arms": []}, "arms is not a known field"),
        ({"load": {"rounds": -1}}, "load.rounds must be"),
        ({"target": {"hardware": "abacus"}}, "target.hardware must be"),
    ],
)
def test_an_order_that_is_wrong_is_refused_before_any_work(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as refused:
        read(**fields)
    assert told in str(refused.value)


def test_presets_of_sagemaker_are_not_carried_out_here() -> None:
    target = {"engine": "sagemaker", "hardware": "sm90", "instance_type": "ml.p5.48xlarge"}
    with pytest.raises(SpecError, match="must be local"):
        read(target=target)

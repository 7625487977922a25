"""Recipes: strict, versioned, and named by their meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contracts.recipes.compatibility import Stack, reasons
from contracts.recipes.recipe import (
    Compilation,
    Drafting,
    Engine,
    Hardware,
    Head,
    Preset,
    Quantization,
    Recipe,
    Speculation,
    Target,
    TensorParallel,
    preset,
)
from contracts.recipes.spec_fields import SpecError

FULL = Recipe(
    Quantization.AWQ_G64,
    Speculation(Drafting.DRAFT, 6, "models/small"),
    Compilation(ahead_of_time=True, packed=True),
    TensorParallel(4, presharded=True),
    Target(Engine.SAGEMAKER, Hardware.SM90, "ml.p5.48xlarge"),
    Head.INT8,
)


@pytest.mark.parametrize("recipe", [Recipe(), FULL])
def test_a_recipe_comes_back_as_it_was(recipe: Recipe) -> None:
    assert Recipe.from_dict(recipe.to_dict()) == recipe


def test_the_digest_is_the_meanings() -> None:
    left_out = Recipe.from_json('{"version": 1, "quantization": "int8"}')
    stated = Recipe.from_json(
        '{"speculation": {"tokens": 4, "method": "none"}, "quantization": "int8", "version": 1}'
    )
    assert left_out.digest == stated.digest
    assert left_out.digest != Recipe(Quantization.FP8).digest


@pytest.mark.parametrize(
    ("value", "head"),
    [
        ({}, Head.STORED),
        ({"quantization": "int8"}, Head.INT8),
        ({"quantization": "awq_int4_g64"}, Head.INT8),
        ({"quantization": "awq_int4_g64", "head": "stored"}, Head.STORED),
        ({"quantization": "awq_int4_g64", "head": "int8"}, Head.INT8),
        ({"quantization": "int8", "head": "stored"}, Head.STORED),
        ({"quantization": "int8", "target": {"hardware": "sm90"}}, Head.STORED),
        ({"quantization": "int8", "target": {"engine": "sagemaker"}}, Head.STORED),
        ({"quantization": "fp8"}, Head.STORED),
    ],
)
def test_the_head_goes_with_the_layers(value: dict[str, Any], head: Head) -> None:
    recipe = Recipe.from_dict({"version": 1, **value})
    assert recipe.head is head
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    other = replace(recipe, head=Head.STORED if head is Head.INT8 else Head.INT8)
    assert other.digest != recipe.digest


def test_a_stored_head_keeps_the_digest_from_before_there_was_a_choice() -> None:
    known = "caae044c8961b3e67cd723257ddd865851de89edcb80f86038a038de2ef7438d"
    assert preset(Preset.LOWEST_COST, Target()).digest == known


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({}, "recipe.version must be 1"),
        ({"version": 2}, "recipe.version must be 1, got 2"),
        ({"version": 1, "quantisation": "int8"}, "recipe.quantisation is not a known field"),
        ({"version": 1, "quantization": "int3"}, "recipe.quantization must be none, int8"),
        ({"version": 1, "quantization": "int8", "head": "int4"}, "recipe.head must be stored, int8"),
        ({"version": 1, "speculation": {"method": "ngram", "tokens": 0}}, "recipe.speculation.tokens"),
        ({"version": 1, "speculation": {"method": "draft"}}, "recipe.speculation.draft_model"),
        ({"version": 1, "speculation": {"method": "ngram", "draft_model": "x"}}, "draft_model goes with"),
        ({"version": 1, "compilation": {"packed": 1}}, "recipe.compilation.packed must be true or false"),
        ({"version": 1, "target": {"instance_type": "g5.large"}}, "must be of the form ml.g5.12xlarge"),
        ({"version": 1, "tensor_parallel": []}, "recipe.tensor_parallel must be an object"),
        ([], "recipe must be an object"),
    ],
)
def test_a_malformed_recipe_is_refused_by_its_field(value: Any, told: str) -> None:
    with pytest.raises(SpecError) as refused:
        Recipe.from_dict(value)
    assert told in str(refused.value)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(SpecError, match="not JSON"):
        Recipe.from_json("{")


def test_speculation_becomes_the_workers_flags() -> None:
    assert Recipe().worker_flags() == []
    flags = FULL.worker_flags()
    assert flags == ["--speculation", "draft", "--speculation-tokens", "6", "--draft-model", "models/small"]


@pytest.mark.parametrize("name", list(Preset))
@pytest.mark.parametrize(
    "target",
    [
        *(Target(hardware=hardware) for hardware in Hardware if hardware is not Hardware.NEURON),
        Target(Engine.SAGEMAKER, Hardware.NEURON, "ml.inf2.48xlarge"),
    ],
)
def test_every_preset_goes_together(name: Preset, target: Target) -> None:
    assert reasons(Stack(preset(name, target))) == []

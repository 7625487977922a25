"""Reads recipes strictly and checks them against a base model before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from contracts.adapters.reference import AdapterRef, EngineName
from contracts.recipes.compatibility import Reason, Stack, reasons
from contracts.recipes.model_facts import ModelFacts, Situation
from contracts.recipes.recipe import Engine, Hardware, Preset, Quantization, Recipe, Target, preset
from contracts.recipes.spec_fields import SpecError, SpecFields
from controlplane.catalog.models import BaseModel
from controlplane.errors import InvalidInputError
from controlplane.optimization.models import Machine

_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")


def recipe_read(values: Mapping[str, Any]) -> Recipe:
    """Parse a recipe; `version` defaults to 1. Raises InvalidInputError naming the field."""
    try:
        return Recipe.from_dict({"version": 1, **values})
    except SpecError as error:
        raise InvalidInputError(str(error), field="recipe") from error


def recipe_of_preset(name: str, target: Mapping[str, Any]) -> Recipe:
    """Return a preset's recipe for `target`. Raises InvalidInputError for an unknown preset or target."""
    if name not in list(Preset):
        raise InvalidInputError(
            f"preset must be one of {', '.join(Preset)}, got {name[:40]!r}", field="preset"
        )
    try:
        return preset(Preset(name), Target.read(SpecFields("target", target)))
    except SpecError as error:
        raise InvalidInputError(str(error), field="target") from error


def recipe_refusals(
    recipe: Recipe, base_model: BaseModel, situation: Mapping[str, Any] | None = None, *, merges: bool = False
) -> list[Reason]:
    """List all reasons against a recipe for a base model. The job itself checks the checkpoint's files.

    Args:
        merges: an adapter is merged into the weights.

    Raises:
        InvalidInputError: `situation` has an unknown field.
    """
    try:
        where = Situation.read(SpecFields("situation", situation or {}))
    except SpecError as error:
        raise InvalidInputError(str(error), field="situation") from error
    facts = ModelFacts(
        architecture=base_model.architecture,
        dtype=base_model.dtype,
        max_model_len=base_model.max_model_len,
        names=(base_model.name, base_model.served_name, base_model.source),
    )
    return reasons(Stack(recipe, facts, where, merges=merges))


def machine_of(recipe: Recipe) -> Machine:
    """Return the kind of machine, and so the queue, that a recipe needs."""
    if recipe.target.engine is Engine.SAGEMAKER:
        return Machine.SAGEMAKER
    return Machine.CPU if recipe.target.hardware in (Hardware.CPU, Hardware.NEURON) else Machine.GPU


def recipe_title(recipe: Recipe, adapter: AdapterRef | None = None) -> str:
    """Name a variant: `awq-int4-g128-ngram-4f2a91`, or `acme-support-v3-merged-4f2a91` with an adapter."""
    drafting = recipe.speculation.method.value
    merged = EngineName.parse(adapter.name) if adapter else None
    parts = [
        # Tenants' and adapters' names have up to 63 characters each; the digest keeps a cut name unique.
        f"{merged.tenant[:15]}-{merged.adapter[:20]}-v{merged.version % 1_000_000} merged" if merged else "",
        "" if recipe.quantization is Quantization.NONE else recipe.quantization.value,
        "" if drafting == "none" else drafting,
        "compiled" if recipe.compilation.ahead_of_time or recipe.compilation.packed else "",
        recipe.digest[:6] if adapter is None else adapter.sha256[:6],
    ]
    return _SEPARATORS.sub("-", " ".join(part for part in parts if part)).strip("-")

"""How a variant that a job made is served: a deployment's options, a worker's flags and environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from contracts.recipes.recipe import Drafting, Hardware, Recipe
from controlplane.catalog.models import Variant
from controlplane.optimization.models import OptimizationJob

_OWN: Final = re.compile(r"GRAFTWORK_WORKER_(?!FLAG_)[A-Z_]+")


@dataclass(frozen=True, slots=True)
class Served:
    """How a variant is served.

    Attributes:
        flags: a worker's flags.
        environment: a worker's variables; paths are absolute.
        options: `LmiOptions` of a deployment, which say the same as `flags`.
    """

    flags: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def served_how(variant: Variant, folder: Path | None) -> Served:
    """Return how the variant's job says that it is served; empty if no job made it.

    Args:
        folder: the checkpoint's folder on this host; None if there is none, which leaves out all paths.
    """
    job: OptimizationJob | None = getattr(variant, "optimization", None)
    serve: Mapping[str, Any] = ((job.result if job else None) or {}).get("serve", {})
    environment = {}
    for name, value in serve.get("environment", {}).items():
        path = folder.parent / value if folder is not None else None
        if path is not None and path.is_dir() and _OWN.fullmatch(name):
            environment[name] = str(path)
    options: dict[str, Any] = {}
    if job is not None:
        recipe = Recipe.from_dict(job.recipe)
        options = speculation_options(recipe) | neuron_options(recipe, job.base_model.max_model_len)
    return Served([str(flag) for flag in serve.get("flags", [])], environment, options)


def speculation_options(recipe: Recipe) -> dict[str, Any]:
    """Return the deployment's options for the recipe's speculation; empty if it needs none.

    A checkpoint with EAGLE heads needs none: SageMaker's image finds them there.
    """
    spoken = recipe.speculation
    if spoken.method not in (Drafting.NGRAM, Drafting.DRAFT):
        return {}
    options = {"speculation": spoken.method.value, "speculation_tokens": spoken.tokens}
    return options | ({"draft_model": spoken.draft_model} if spoken.draft_model else {})


def neuron_options(recipe: Recipe, max_model_len: int) -> dict[str, Any]:
    """Return the deployment's options that match compiled Neuron graphs; empty for other hardware."""
    if recipe.target.hardware is not Hardware.NEURON or not recipe.compilation.ahead_of_time:
        return {}
    tokens, sequences = recipe.neuron_shape(max_model_len)
    shapes = {"max_model_len": tokens, "max_rolling_batch_size": sequences, "dtype": "bf16"}
    degree = recipe.tensor_parallel.degree
    return shapes | ({"tensor_parallel": degree} if degree > 1 else {})

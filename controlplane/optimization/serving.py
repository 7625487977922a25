"""How a variant that a job made is served: a deployment's options, a worker's flags and environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from contracts.recipes.recipe import OWN_DRAFT, Drafting, Engine, Recipe
from controlplane.catalog.models import Variant
from controlplane.deployments.containers.images import NEURON_IMAGE, TENSORRT_LLM_IMAGE
from controlplane.deployments.containers.speculation import PROVIDED
from controlplane.optimization.models import OptimizationJob

COMPILED_DTYPE: Final = "bf16"
"""Type of the weights in models that SageMaker compiles, as an LMI option."""
_OWN: Final = re.compile(r"GRAFTWORK_WORKER_(?!FLAG_)[A-Z_]+")


@dataclass(frozen=True, slots=True)
class Served:
    """How a variant is served.

    Attributes:
        flags: a worker's flags.
        environment: a worker's variables; paths are absolute.
        options: `LmiOptions` of a deployment, which say the same as `flags`.
        image: name or address of the only kind of image that serves the variant; "" for any of SageMaker's.
    """

    flags: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    image: str = ""


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
    image = ""
    if job is not None:
        recipe = Recipe.from_dict(job.recipe)
        options = speculation_options(recipe, job.result or {}) | device_options(
            recipe, job.base_model.max_model_len
        )
        image = compiled_image(recipe, str(job.remote.get("options", {}).get("image", "")))
    return Served([str(flag) for flag in serve.get("flags", [])], environment, options, image)


def speculation_options(recipe: Recipe, result: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the deployment's options for the recipe's speculation; empty if it needs none.

    A checkpoint with EAGLE heads needs none: SageMaker's image finds them there.

    Args:
        result: the job's, with the location of SageMaker's draft model and the acceptance of its license.
    """
    spoken = recipe.speculation
    if spoken.draft_model == OWN_DRAFT:
        provided = {"speculation": PROVIDED, "draft_model": (result or {}).get("draft_model", "")}
        return provided | ({"accept_eula": True} if (result or {}).get("accept_eula") else {})
    if spoken.method not in (Drafting.NGRAM, Drafting.DRAFT):
        return {}
    options = {"speculation": spoken.method.value, "speculation_tokens": spoken.tokens}
    return options | ({"draft_model": spoken.draft_model} if spoken.draft_model else {})


def device_options(recipe: Recipe, max_model_len: int) -> dict[str, Any]:
    """Return the options that match the devices and shapes that SageMaker optimized for."""
    if recipe.target.engine is not Engine.SAGEMAKER:
        return {}
    degree = recipe.tensor_parallel.degree
    options: dict[str, Any] = {"tensor_parallel": degree} if degree > 1 else {}
    if not recipe.compilation.ahead_of_time:
        return options
    tokens, sequences = recipe.compiled_shape(max_model_len)
    shape = {"max_model_len": tokens, "max_rolling_batch_size": sequences, "dtype": COMPILED_DTYPE}
    # A deployment's default is the number of its devices, and the compiled model needs exactly its own.
    return shape | {"tensor_parallel": degree}


def compiled_image(recipe: Recipe, image: str) -> str:
    """Return the image that serves the compiled model; "" if the recipe compiles nothing for SageMaker.

    Args:
        image: the job's own image; "" for the default.
    """
    if recipe.target.engine is not Engine.SAGEMAKER or not recipe.compilation.ahead_of_time:
        return ""
    return image or (TENSORRT_LLM_IMAGE if recipe.builds_tensorrt_engine else NEURON_IMAGE)

"""The form of an optimization job: a preset, or techniques chosen one by one, as a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from contracts.adapters.reference import AdapterRef
from contracts.recipes.recipe import Drafting, Engine, Hardware, Head, Preset, Quantization, Recipe
from controlplane.catalog.models import BaseModel
from controlplane.console.amounts import whole
from controlplane.deployments.models import Target
from controlplane.deployments.selectors import target_list
from controlplane.errors import InvalidInputError
from controlplane.optimization import preset_runs as stored_runs
from controlplane.optimization.merging import adapter_to_merge
from controlplane.optimization.recipes import recipe_of_preset, recipe_read
from controlplane.optimization.sagemaker.jumpstart import AS_OF, JUMPSTART_MODELS, SOURCE
from controlplane.optimization.sagemaker.options import RemoteOptions

OWN: Final = "own"
"""As `preset`: a custom choice of techniques."""
MERGED: Final = "merged"
"""As `preset`: a merged copy for one adapter version."""
FIELDS: Final = (
    "base_model",
    "preset",
    "hardware",
    "quantization",
    "head",
    "speculation",
    "draft_model",
    "ahead_of_time",
    "packed",
    "sequence_length",
    "batch_size",
    "prompts",
    "variant",
    "adapter",
    "account",
    "instance_type",
    "degree",
    "weights",
    "model",
    "accept_eula",
)
PRESETS: Final = {
    Preset.LOWEST_COST.value: (
        gettext_lazy("Lowest cost"),
        gettext_lazy("Smallest weights, for more concurrent streams per machine"),
    ),
    Preset.LOWEST_LATENCY.value: (
        gettext_lazy("Lowest latency"),
        gettext_lazy("Small weights and speculative decoding"),
    ),
    Preset.BALANCED.value: (
        gettext_lazy("Balanced"),
        gettext_lazy("Original weights and speculative decoding"),
    ),
    OWN: (gettext_lazy("Custom"), gettext_lazy("Individual techniques")),
    MERGED: (gettext_lazy("Merged copy"), gettext_lazy("One adapter merged into the weights")),
}
_QUANTIZATIONS: Final = {
    Quantization.NONE: gettext_lazy("unchanged"),
    Quantization.INT8: gettext_lazy("int8, weights and activations"),
    Quantization.AWQ_G128: gettext_lazy("AWQ int4, groups of 128 (calibrated)"),
    Quantization.AWQ_G64: gettext_lazy("AWQ int4, groups of 64 (calibrated)"),
    Quantization.AWQ3_G128: gettext_lazy("AWQ int3, groups of 128 (calibrated)"),
    Quantization.RTN_G128: gettext_lazy("int4 by rounding, groups of 128"),
    Quantization.FP8: "FP8",
}
_HEADS: Final = {
    "": gettext_lazy("automatic"),
    Head.STORED.value: gettext_lazy("unchanged"),
    Head.INT8.value: gettext_lazy("int8, rounded when it is loaded (CPUs)"),
}
_DRAFTING: Final = {
    Drafting.NONE: gettext_lazy("none"),
    Drafting.NGRAM: gettext_lazy("n-grams of prompt and response"),
    Drafting.DRAFT: gettext_lazy("draft model"),
    Drafting.EAGLE: gettext_lazy("EAGLE heads"),
}


def choices() -> dict[str, Any]:
    """Return the form's choices."""
    return {
        "presets": [(value, *texts) for value, texts in PRESETS.items()],
        "hardwares": [item.value for item in Hardware],
        "quantizations": [(item.value, _QUANTIZATIONS[item]) for item in Quantization],
        "heads": list(_HEADS.items()),
        "accounts": [target.name for target in target_list(kind=Target.Kind.SAGEMAKER)],
        "jumpstart": {"source": SOURCE, "as_of": AS_OF, "models": JUMPSTART_MODELS},
        "drafting": [(item.value, _DRAFTING[item]) for item in Drafting],
    }


def preset_runs(values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return each preset for the form's target, with its stored runs; empty for an invalid target."""
    found = []
    for preset in Preset:
        try:
            recipe = recipe_of_preset(preset.value, _target(values))
        except InvalidInputError:
            return []
        found.append({"title": PRESETS[preset.value][0], "runs": stored_runs.preset_runs(preset, recipe)})
    return found


def form_values(sent: Mapping[str, str]) -> dict[str, str]:
    """Return the submitted values, with the form's defaults for missing ones."""
    defaults = {"preset": Preset.LOWEST_COST.value, "hardware": Hardware.CPU.value}
    values = {name: sent.get(name, "").strip()[:500] for name in FIELDS}
    return {name: value or defaults.get(name, "") for name, value in values.items()}


def sagemaker_asked(values: Mapping[str, str]) -> RemoteOptions | None:
    """Parse the SageMaker options; None if the form names no account. Raises InvalidInputError."""
    if not values["account"]:
        return None
    return RemoteOptions.read(
        {
            "target": values["account"],
            "weights": values["weights"],
            "model": values["model"],
            "accept_eula": bool(values["accept_eula"]) and bool(values["weights"]),
        }
    )


def _devices(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the tensor-parallel section; an invalid degree becomes 0, which the recipe refuses by field."""
    degree = whole(values["degree"] or "1", digits=3) or 0
    # A compiled model holds its shards already.
    return {"degree": degree, "presharded": degree > 1 and not values["ahead_of_time"]}


def _compilation(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the compilation section; a malformed number stays a text, which the recipe refuses by field."""
    numbers = ("sequence_length", "batch_size")
    shapes = {name: whole(values[name], digits=6) or values[name] for name in numbers if values[name]}
    flags = {name: bool(values[name]) for name in ("ahead_of_time", "packed")}
    return flags | shapes


def _target(values: Mapping[str, str]) -> dict[str, str]:
    target = {"engine": Engine.LOCAL.value, "hardware": values["hardware"]}
    if values["account"]:
        target |= {"engine": Engine.SAGEMAKER.value, "instance_type": values["instance_type"]}
    return target


def adapter_asked(values: Mapping[str, str], base_model: BaseModel) -> AdapterRef | None:
    """Return the adapter of a merged copy; None for other jobs.

    Raises:
        InvalidInputError: a merged copy without an adapter, or an adapter without one.
        NotFoundError: the base model has no such version.
    """
    if values["preset"] == MERGED and values["adapter"]:
        return adapter_to_merge(base_model=base_model, name=values["adapter"])
    if values["preset"] == MERGED:
        raise InvalidInputError(_("enter an adapter version, such as acme/support@v3"), field="adapter")
    if values["adapter"]:
        raise InvalidInputError(
            _("an adapter is only for a merged copy: choose Merged copy"), field="adapter"
        )
    return None


def recipe_asked(values: Mapping[str, str]) -> Recipe:
    """Parse the form to a recipe. Raises InvalidInputError."""
    target = _target(values)
    if values["preset"] == MERGED:
        return recipe_read({"target": target})
    if values["preset"] != OWN:
        return recipe_of_preset(values["preset"], target)
    speculation: dict[str, Any] = {"method": values["speculation"] or Drafting.NONE.value}
    if values["draft_model"]:
        speculation["draft_model"] = values["draft_model"]
    head = {"head": values["head"]} if values["head"] else {}
    recipe = recipe_read(
        {
            **head,
            "quantization": values["quantization"] or Quantization.NONE.value,
            "speculation": speculation,
            "compilation": _compilation(values),
            "tensor_parallel": _devices(values),
            "target": target,
        }
    )
    if recipe == Recipe(tensor_parallel=recipe.tensor_parallel, target=recipe.target) and not (
        recipe.tensor_parallel.presharded
    ):
        raise InvalidInputError(
            _("choose a technique: without one, the result equals the base model"), field="recipe"
        )
    return recipe

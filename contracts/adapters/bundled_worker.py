"""Refuses adapters that fit their base model but that the bundled worker does not serve."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from contracts.adapters.config import EMBEDDING, FEATURE_EXTRACTION, HEAD, AdapterConfigError, LoraConfig
from contracts.adapters.needs import module_traits
from contracts.adapters.parts import Part, Shape
from contracts.adapters.tensors import Modules
from contracts.capabilities.traits import Trait
from contracts.capabilities.worker import TRAITS

LORA_MODULES: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear modules of a dense decoder layer."""
_LAYERS: Final = "model.layers."
_SPARSE: Final = re.compile(
    r"model\.layers\.\d+\.(?:mlp|block_sparse_moe|feed_forward)\."
    r"(?:gate|router|shared_experts?\.(?:gate|up|down)_proj|shared_expert_gate"
    r"|experts\.(?:\d+\.)?(?:(?:gate|up|gate_up|down)_proj|w[123]))"
)
"""Linear modules of a layer of experts."""
_LATENT: Final = re.compile(r"model\.layers\.\d+\.self_attn\.(?:q_[ab]_proj|kv_a_proj_with_mqa|kv_b_proj)")
"""Linear modules of latent attention."""


def refuse_config(config: LoraConfig, traits: frozenset[Trait] = TRAITS) -> None:
    """Raise AdapterConfigError naming a field with a value that the worker does not serve.

    Args:
        traits: that the worker serves on the base's architecture.
    """
    if config.task not in ("", "CAUSAL_LM", FEATURE_EXTRACTION):
        raise AdapterConfigError(
            "adapter_config.json: task_type must be 'CAUSAL_LM' or 'FEATURE_EXTRACTION' on this worker, "
            f"got {config.task!r}"
        )
    stacked = config.parameters if Trait.STACKED_EXPERTS not in traits else ()
    for name, value in (("fan_in_fan_out", config.fan_in_fan_out), ("target_parameters", stacked)):
        if value:
            raise AdapterConfigError(
                f"adapter_config.json: {name} is not served by this worker: train the adapter without it, "
                "or deploy the base model on another engine"
            )


def refuse_unserved(
    config: LoraConfig, modules: Modules, base: Mapping[str, Shape], traits: frozenset[Trait] = TRAITS
) -> None:
    """Raise AdapterConfigError naming the first field or tensor that the worker does not serve.

    It raises nothing where the adapter's traits are among `traits` and the base is of a family that the
    worker serves, so that the capability says what the loader does.

    Args:
        modules: as `sort_tensors` returns them.
        base: the base's tensors by common name.
        traits: that the worker serves on the base's architecture.
    """
    refuse_config(config, traits)
    for module, parts in modules.items():
        unserved = module_traits(module, parts, base) - traits
        if unserved or not _is_served(module):
            raise AdapterConfigError(_reason(module, parts, unserved))


def _is_served(module: str) -> bool:
    """Return True if the worker has a place for a module of its families."""
    kind = module.rpartition(".")[2]
    if module in (EMBEDDING, HEAD) or kind.endswith("norm"):
        return True
    is_dense = module.startswith(_LAYERS) and ".experts" not in module and kind in LORA_MODULES
    return is_dense or any(names.fullmatch(module) for names in (_SPARSE, _LATENT))


def _reason(module: str, parts: Mapping[Part, str], traits: Iterable[Trait]) -> str:
    kind, name = module.rpartition(".")[2], next(iter(parts.values()))
    because = f" ({', '.join(sorted(traits))})" if traits else ""
    if parts.keys() & {Part.WEIGHT, Part.PARAMETER}:
        return (
            f"adapter_config.json: modules_to_save {kind!r} is not served by this worker{because}, only "
            "embed_tokens, lm_head and norms of whole rows"
        )
    if Part.TOKENS in parts:
        return f"tensor {name}: trained rows are not served on {kind}, only on embed_tokens and lm_head"
    if ".experts." in module and parts.keys() & {Part.MAGNITUDE, Part.LORA_BIAS}:
        return f"tensor {name}: DoRA and biases of lora_B are not served on experts by this worker"
    what = "a trained bias" if parts.keys() == {Part.BIAS} else "LoRA"
    return (
        f"tensor {name}: {what} is not served on {kind} by this worker{because}, only on "
        f"{', '.join(LORA_MODULES)}, embed_tokens and lm_head of the language model, and on experts, router, "
        "shared experts and latent attention where the base is of a family with them that it serves"
    )

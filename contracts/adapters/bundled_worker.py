"""Refuses adapters that fit their base model but that the bundled worker does not serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from contracts.adapters.config import EMBEDDING, FEATURE_EXTRACTION, HEAD, AdapterConfigError, LoraConfig
from contracts.adapters.needs import module_traits
from contracts.adapters.parts import Part, Shape
from contracts.adapters.tensors import Modules
from contracts.capabilities.traits import Trait
from contracts.capabilities.worker import TRAITS

LORA_MODULES: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear modules of a decoder layer."""
_LAYERS: Final = "model.layers."


def refuse_config(config: LoraConfig) -> None:
    """Raise AdapterConfigError naming a field with a value that the worker does not serve."""
    if config.task not in ("", "CAUSAL_LM", FEATURE_EXTRACTION):
        raise AdapterConfigError(
            "adapter_config.json: task_type must be 'CAUSAL_LM' or 'FEATURE_EXTRACTION' on this worker, "
            f"got {config.task!r}"
        )
    for name, value in (("fan_in_fan_out", config.fan_in_fan_out), ("target_parameters", config.parameters)):
        if value:
            raise AdapterConfigError(
                f"adapter_config.json: {name} is not served by this worker: train the adapter without it, "
                "or deploy the base model on another engine"
            )


def refuse_unserved(config: LoraConfig, modules: Modules, base: Mapping[str, Shape]) -> None:
    """Raise AdapterConfigError naming the first field or tensor that the worker does not serve.

    It raises nothing where the adapter's traits are among `TRAITS` and the base is of a family that
    the worker serves.

    Args:
        modules: as `sort_tensors` returns them.
        base: the base's tensors by common name.
    """
    refuse_config(config)
    for module, parts in modules.items():
        unserved = module_traits(module, parts, base) - TRAITS
        if unserved or not _is_served(module, parts, base):
            raise AdapterConfigError(_reason(module, parts, unserved))


def _is_served(module: str, parts: Mapping[Part, str], base: Mapping[str, Shape]) -> bool:
    """Return True if the worker has a place for these tensors of a plain module."""
    if Part.PARAMETER in parts:
        return False
    if module in (EMBEDDING, HEAD):
        return True
    if Part.WEIGHT in parts:
        is_norm = len(base.get(f"{module}.weight", ())) == 1
        return is_norm and module.startswith("model.") and parts.keys() == {Part.WEIGHT}
    kind = module.rpartition(".")[2]
    return module.startswith(_LAYERS) and kind in LORA_MODULES


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
    what = "a trained bias" if parts.keys() == {Part.BIAS} else "LoRA"
    return (
        f"tensor {name}: {what} is not served on {kind} by this worker{because}, only on "
        f"{', '.join(LORA_MODULES)}, embed_tokens and lm_head of the language model"
    )

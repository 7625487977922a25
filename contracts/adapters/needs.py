"""Derives an adapter's rank and traits from its modules' names and its configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from contracts.adapters.config import EMBEDDING, HEAD, LoraConfig
from contracts.adapters.parts import Part, Shape
from contracts.adapters.shapes import is_embedding
from contracts.adapters.tensors import Modules, max_rank
from contracts.capabilities.traits import AdapterNeeds, Trait

_TASKS: Final = {
    "SEQ_CLS": Trait.CLASSIFICATION,
    "TOKEN_CLS": Trait.TAGGING,
    "FEATURE_EXTRACTION": Trait.FEATURE_EXTRACTION,
    "SEQ_2_SEQ_LM": Trait.SEQUENCE_TO_SEQUENCE,
}
_PARTS: Final = {
    Part.MAGNITUDE: Trait.DORA,
    Part.BIAS: Trait.BIAS,
    Part.LORA_BIAS: Trait.LORA_BIAS,
    Part.TOKENS: Trait.TRAINED_ROWS,
    Part.WEIGHT: Trait.SAVED_MODULES,
    Part.PARAMETER: Trait.SAVED_MODULES,
}
_PLACES: Final = tuple(
    (re.compile(rf"(?:^|[._])(?:{names})(?:[._\d]|$)"), trait)
    for names, trait in (
        (
            "vision|visual|vit|image|images|img|patch_embed|multi_modal_projector|mm_projector|connector|resampler"
            "|perceiver|vpm|pixel|aligner",
            Trait.VISION,
        ),
        ("audio|speech|sound", Trait.AUDIO),
        (r"experts\.\d+", Trait.EXPERTS),
        ("shared_experts?|shared_expert_gate|shared_mlp", Trait.SHARED_EXPERTS),
        (r"router|(?:mlp|moe|mixer)\.gate(?=\.|$)", Trait.ROUTER),
        (
            "linear_attn|linear_attention|delta_net|gated_delta|kda|lightning_attn|time_mix",
            Trait.LINEAR_ATTENTION,
        ),
        (r"mamba\d?|ssm|mixer\.(?:in_proj|out_proj|x_proj|dt_proj|conv1d)", Trait.STATE_SPACE),
    )
)
"""Names along a module's path, between dots or underscores."""
_LATENT: Final = re.compile(
    r"(?:q|k|v|o)_[ab]_proj(?:_with_mqa)?|kv_a_proj_with_mqa|kv_a_proj|q_down_proj|kv_down_proj"
)
_FUSED: Final = re.compile(
    r"qkv(?:_proj)?|gate_up_proj|query_key_value|c_attn|w?qkv|in_proj_qkv|kv_proj|Wi|Wqkv", re.I
)
_PLAIN: Final = re.compile(
    r"[qkvo]_proj|(?:gate|up|down|out|query|key|value)_proj|w[1-3qkvo]|query|key|value|[qkv]|dense|fc(?:_?\d|_in|_out)"
    r"|[qkv]_lin|out_lin|lin[12]|c_(?:proj|fc)|dense_h_to_4h|dense_4h_to_h|linear_[vq]|wi(?:_[01])?|linear\d?"
    r"|ff_proj|ff_out|ffn(?:_output)?|attn_out|(?:key|query|value)_layer|Wo|proj_[12]|o"
)
"""Linear layers of attention and MLP in every family."""
_HEADS: Final = frozenset({"lm_head", "embed_out", "output_projection"})
_LORA: Final = frozenset({Part.A, Part.B, Part.EMBEDDING_A, Part.EMBEDDING_B})


def adapter_needs(
    config: LoraConfig, modules: Modules, base: Mapping[str, Shape], split: Collection[str] = ()
) -> AdapterNeeds:
    """Return the rank and the traits of an adapter.

    Args:
        modules: as `sort_tensors` returns them.
        base: the base's tensors by common name.
        split: names of those that its checkpoint holds in fused layers.
    """
    traits = {trait for module, parts in modules.items() for trait in module_traits(module, parts, base)}
    if any(_is_split(module, base) for module in modules if f"{module}.weight" in split):
        traits.add(Trait.SPLIT_PROJECTIONS)
    if config.task in _TASKS:
        traits.add(_TASKS[config.task])
    if config.parameters:
        traits.add(Trait.STACKED_EXPERTS)
    if config.fan_in_fan_out:
        traits.add(Trait.OTHER_MODULES)
    return AdapterNeeds(max_rank(config, modules), frozenset(traits))


def module_traits(module: str, parts: Mapping[Part, str], base: Mapping[str, Shape]) -> frozenset[Trait]:
    """Return the traits of one module's tensors.

    Args:
        module: common name.
        parts: the roles of its tensors.
    """
    found = {trait for part, trait in _PARTS.items() if part in parts}
    weight = base.get(f"{module}.weight")
    if Part.WEIGHT in parts and Part.BIAS in parts:
        found.discard(Trait.BIAS)  # a replaced module brings its bias
    if parts.keys() & _LORA:
        found |= _linear_traits(module, weight)
    elif parts.keys() - {Part.BASE_WEIGHT} and not _is_whole(module, parts, weight):
        found |= _linear_traits(module, weight) or {Trait.OTHER_MODULES}
    if _is_other_change(module, parts, weight):
        found.add(Trait.OTHER_CHANGES)
    return frozenset(found)


def _is_other_change(module: str, parts: Mapping[Part, str], weight: Shape | None) -> bool:
    """Return True for parts that no engine serves on this module, although it serves them on others."""
    if ".experts." in module and not parts.keys() <= {Part.A, Part.B}:
        return True  # also where the base holds its experts in one tensor and has no weight of this name
    if weight is None:
        return False
    if Part.PARAMETER in parts:
        return True
    if module in (EMBEDDING, HEAD):
        return False
    if Part.WEIGHT in parts:
        return len(weight) > 1 or parts.keys() != {Part.WEIGHT}
    return ".experts" in module and not parts.keys() <= {Part.A, Part.B}


def _linear_traits(module: str, weight: Shape | None) -> set[Trait]:
    """Return the traits of a layer's place in the model, of its kind where the place has none."""
    kind = module.rpartition(".")[2]
    found = {trait for pattern, trait in _PLACES if pattern.search(module)}
    if ".experts" in module and (weight is None or len(weight) == 3) and Trait.EXPERTS not in found:
        found = found - {Trait.ROUTER} | {Trait.STACKED_EXPERTS}
    elif weight is not None and len(weight) == 3 and "expert" not in kind and kind.endswith("_linear"):
        found.add(Trait.STACKED_EXPERTS)  # Granite's `input_linear` holds all experts
    if module in (EMBEDDING, HEAD) or is_embedding(module) or kind in _HEADS:
        found.add(Trait.EMBEDDING if module == EMBEDDING or is_embedding(module) else Trait.HEAD)
    elif kind == "kv_b_proj":
        found.add(Trait.ABSORBED_PROJECTION)
    elif _LATENT.fullmatch(kind):
        found.add(Trait.LATENT_ATTENTION)
    elif _FUSED.fullmatch(kind) and not found & {Trait.EXPERTS, Trait.STACKED_EXPERTS}:
        found.add(Trait.FUSED_PROJECTIONS)
    elif not found and (not _PLAIN.fullmatch(kind) or (weight is not None and len(weight) != 2)):
        found.add(Trait.OTHER_MODULES)
    return found


def _is_split(module: str, base: Mapping[str, Shape]) -> bool:
    """Return True for a linear layer; experts and embeddings have traits of their own."""
    return len(base[f"{module}.weight"]) == 2 and not is_embedding(module) and ".experts." not in module


def _is_whole(module: str, parts: Mapping[Part, str], weight: Shape | None) -> bool:
    """Return True for tensors that replace an embedding, a head, a norm, or the bias of a plain layer."""
    kind = module.rpartition(".")[2]
    if module in (EMBEDDING, HEAD) or weight is None:
        return True
    if Part.BIAS in parts and Part.WEIGHT not in parts:
        return _linear_traits(module, weight) == set() and len(weight) == 2
    is_norm = module.startswith("model.") and len(weight) == 1 and kind not in ("q_norm", "k_norm")
    return is_norm and not _linear_traits(module, weight) - {Trait.OTHER_MODULES}

"""Capabilities of engines, and the reasons in words why an engine cannot serve a base model or an adapter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from contracts.capabilities.traits import AdapterNeeds, Trait

TRAIT_NAMES: Final[Mapping[str, str]] = {
    Trait.EXPERTS: "LoRA on single experts",
    Trait.STACKED_EXPERTS: "LoRA on stacked experts (target_parameters)",
    Trait.SHARED_EXPERTS: "LoRA on shared experts",
    Trait.ROUTER: "LoRA on the experts' router",
    Trait.LATENT_ATTENTION: "LoRA on latent attention",
    Trait.ABSORBED_PROJECTION: "LoRA on kv_b_proj of latent attention",
    Trait.FUSED_PROJECTIONS: "LoRA on fused projections",
    Trait.SPLIT_PROJECTIONS: "LoRA on parts of a layer that the base model fuses",
    Trait.LINEAR_ATTENTION: "LoRA on linear attention",
    Trait.STATE_SPACE: "LoRA on state-space layers",
    Trait.VISION: "LoRA on the vision tower",
    Trait.AUDIO: "LoRA on the audio tower",
    Trait.EMBEDDING: "LoRA on the embedding",
    Trait.HEAD: "LoRA on the head",
    Trait.OTHER_MODULES: "LoRA on other modules",
    Trait.DORA: "DoRA",
    Trait.BIAS: "trained biases",
    Trait.LORA_BIAS: "LoRA biases (lora_bias)",
    Trait.SAVED_MODULES: "replaced modules (modules_to_save)",
    Trait.OTHER_CHANGES: "these changes together (DoRA or biases on experts, replaced layers or parameters)",
    Trait.TRAINED_ROWS: "trained token rows (trainable_token_indices)",
    Trait.CLASSIFICATION: "sequence classification",
    Trait.TAGGING: "token classification",
    Trait.FEATURE_EXTRACTION: "feature extraction",
    Trait.OWN_POOLING: "pooling files of an adapter",
    Trait.OTHER_POOLING: "the mode or a module of the adapter's pooling files",
    Trait.SEQUENCE_TO_SEQUENCE: "sequence-to-sequence models",
}
"""Names of the traits in messages."""


@dataclass(frozen=True, slots=True)
class BaseNeeds:
    """Requirements of a base model on the engine that serves it.

    Attributes:
        architecture: first of `architectures` in config.json.
        quantization: method of its weights, as in `quantization_config.quant_method`; "" for none.
    """

    architecture: str
    quantization: str = ""


@dataclass(frozen=True, slots=True)
class Capability:
    """Base models, adapters and requests that one version of an engine serves.

    Attributes:
        engine: its name in messages, with the version.
        architectures: traits of adapters by architecture; None for an architecture without adapters. If the
            mapping is None, the architectures are not known, and `traits` holds for all of them.
        traits: traits of adapters where `architectures` is None.
        quantizations: methods of base weights; None if they are not known.
        max_rank: largest LoRA rank that it can be started with; None for no limit.
        endpoints: names of the served request kinds, such as chat.
        parameters: request parameters by endpoint; an endpoint that is left out is not known.
        images: True if it reads images where the base model has a vision part; None if that is not known.
    """

    engine: str
    architectures: Mapping[str, frozenset[Trait] | None] | None = None
    traits: frozenset[Trait] = frozenset()
    quantizations: frozenset[str] | None = None
    max_rank: int | None = None
    endpoints: frozenset[str] = frozenset()
    parameters: Mapping[str, frozenset[str]] = field(default_factory=dict)
    images: bool | None = False

    def base_problem(self, base: BaseNeeds) -> str:
        """Return why it cannot serve the base model; "" if it can, or if that is not known."""
        if self.architectures is not None and base.architecture not in self.architectures:
            return f"{self.engine} does not serve {base.architecture}"
        known = self.quantizations
        if base.quantization and known is not None and base.quantization not in known:
            return f"{self.engine} does not serve {base.quantization} weights"
        return ""

    def adapter_traits(self, architecture: str) -> frozenset[Trait] | None:
        """Return the traits of adapters that it serves on an architecture; None if it serves no adapters."""
        return self.traits if self.architectures is None else self.architectures.get(architecture)

    def adapter_problem(self, base: BaseNeeds, needs: AdapterNeeds, *, max_rank: int | None = None) -> str:
        """Return why it cannot serve the adapter; "" if it can, or if that is not known.

        Args:
            max_rank: limit that a copy was started with, below the engine's own.
        """
        if problem := self.base_problem(base):
            return problem
        served = self.adapter_traits(base.architecture)
        if served is None:
            return f"{self.engine} serves {base.architecture} without adapters"
        limit = min((rank for rank in (max_rank, self.max_rank) if rank is not None), default=None)
        text = missing_text(needs.traits - served, needs.rank, limit)
        return f"{self.engine} does not serve {text}" if text else ""


def missing_text(traits: Collection[str], rank: int, max_rank: int | None) -> str:
    """Return what an adapter needs and a copy lacks, as a list in words; "" for nothing.

    Args:
        traits: needed traits that the copy does not serve; unknown ones are named as they are.
        rank: of the adapter.
        max_rank: the copy's limit; None for no limit, 0 for a copy without adapters.
    """
    if max_rank == 0:
        return "adapters"
    parts = [TRAIT_NAMES.get(trait, trait) for trait in sorted(traits)]
    if max_rank is not None and rank > max_rank:
        parts.append(f"rank {rank} (at most {max_rank})")
    return ", ".join(parts)


def known_traits(values: Collection[str]) -> frozenset[Trait] | None:
    """Parse traits; return None if a newer release wrote one that this release does not know."""
    known = {str(trait) for trait in Trait}
    return frozenset(map(Trait, values)) if known.issuperset(values) else None

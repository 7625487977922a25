"""Traits: properties of adapters that not every engine serves."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Trait(enum.StrEnum):
    """A property that not every engine serves. The values are stored, and sent to gateways.

    A file has the traits of its tensors' modules and of its configuration. Pairs on the plain linear layers
    of attention and MLP have none.
    """

    EXPERTS = "experts"
    """Pairs on the layers of single experts (`experts.3.up_proj`)."""
    STACKED_EXPERTS = "stacked-experts"
    """Pairs on tensors that hold all experts of a layer (PEFT's `target_parameters`)."""
    SHARED_EXPERTS = "shared-experts"
    ROUTER = "router"
    LATENT_ATTENTION = "latent-attention"
    """Projections of multi-head latent attention (`q_a_proj`, `kv_a_proj_with_mqa`)."""
    ABSORBED_PROJECTION = "absorbed-projection"
    """`kv_b_proj` of latent attention, which vLLM absorbs without the adapter (its issue 48974)."""
    FUSED_PROJECTIONS = "fused-projections"
    """One layer in the place of several (`qkv_proj`, `gate_up_proj`)."""
    SPLIT_PROJECTIONS = "split-projections"
    """Parts of a layer that the checkpoint has as one (`q_proj` of Molmo2's `att_proj`)."""
    LINEAR_ATTENTION = "linear-attention"
    STATE_SPACE = "state-space"
    """Mamba's projections."""
    VISION = "vision"
    """Modules of a vision tower or its projector."""
    AUDIO = "audio"
    EMBEDDING = "embedding"
    HEAD = "head"
    OTHER_MODULES = "other-modules"
    """Linear layers of no kind that is named here."""
    DORA = "dora"
    BIAS = "bias"
    """Trained biases that replace the base's."""
    LORA_BIAS = "lora-bias"
    """B has a bias of its own."""
    SAVED_MODULES = "saved-modules"
    """Weights that replace the base's as a whole (`modules_to_save`)."""
    OTHER_CHANGES = "other-changes"
    """Kinds of change that no engine serves on this module: DoRA, biases or weights of experts, the replaced
    weight of a router or of another layer, a parameter that is no weight."""
    TRAINED_ROWS = "trained-rows"
    """Rows of the embedding that replace the base's (`trainable_token_indices`)."""
    CLASSIFICATION = "classification"
    """task_type SEQ_CLS."""
    TAGGING = "tagging"
    """task_type TOKEN_CLS."""
    FEATURE_EXTRACTION = "feature-extraction"
    OWN_POOLING = "own-pooling"
    """Pooling files of its own, which vLLM ignores."""
    OTHER_POOLING = "other-pooling"
    """Pooling files of its own with a mode or a module that no engine serves."""
    SEQUENCE_TO_SEQUENCE = "sequence-to-sequence"


@dataclass(frozen=True, slots=True)
class AdapterNeeds:
    """Requirements of one adapter version on the copy that serves it.

    Attributes:
        rank: largest LoRA rank in the file.
        traits: of its file.
    """

    rank: int
    traits: frozenset[Trait] = frozenset()

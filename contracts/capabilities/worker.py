"""Capability of the bundled worker. Tests hold it equal to the adapters that `worker_engine` loads."""

from __future__ import annotations

from typing import Final

from contracts.capabilities.capability import Capability
from contracts.capabilities.traits import Trait

LATENT: Final = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
"""Architectures with latent attention, and a mixture of experts."""
SPARSE: Final = (
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "GptOssForCausalLM",
    *LATENT,
    "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration",
)
"""Architectures with a mixture of experts."""
ARCHITECTURES: Final = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    *SPARSE,
)
"""Architectures that the worker serves; a test holds them equal to `worker_engine.models.FAMILIES`."""
TRAITS: Final = frozenset(
    {
        Trait.EMBEDDING,
        Trait.HEAD,
        Trait.DORA,
        Trait.BIAS,
        Trait.LORA_BIAS,
        Trait.SAVED_MODULES,
        Trait.TRAINED_ROWS,
        Trait.FEATURE_EXTRACTION,
        Trait.OWN_POOLING,
    }
)
"""Traits of adapters on every architecture; a test loads an adapter of each trait."""
SPARSE_TRAITS: Final = TRAITS | {Trait.EXPERTS, Trait.STACKED_EXPERTS, Trait.SHARED_EXPERTS, Trait.ROUTER}
"""Traits of adapters on the architectures of `SPARSE`."""
LATENT_TRAITS: Final = SPARSE_TRAITS | {Trait.LATENT_ATTENTION, Trait.ABSORBED_PROJECTION}
"""Traits of adapters on the architectures of `LATENT`."""
WORKER: Final = Capability(
    engine="the bundled worker",
    architectures={
        **dict.fromkeys(ARCHITECTURES, TRAITS),
        **dict.fromkeys(SPARSE, SPARSE_TRAITS),
        **dict.fromkeys(LATENT, LATENT_TRAITS),
    },
    quantizations=frozenset({"awq", "compressed-tensors", "mxfp4"}),
    endpoints=frozenset({"chat", "completions", "embeddings"}),
)
"""It stores adapters at their own rank, so it has no limit of ranks."""

"""Capability of the bundled worker. Tests hold it equal to the adapters that `worker_engine` loads."""

from __future__ import annotations

from typing import Final

from contracts.capabilities.capability import Capability
from contracts.capabilities.traits import Trait

ARCHITECTURES: Final = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
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
    }
)
"""Traits of adapters on every architecture; a test loads an adapter of each trait."""
WORKER: Final = Capability(
    engine="the bundled worker",
    architectures=dict.fromkeys(ARCHITECTURES, TRAITS),
    quantizations=frozenset({"awq", "compressed-tensors"}),
    endpoints=frozenset({"chat", "completions", "embeddings"}),
)
"""It stores adapters at their own rank, so it has no limit of ranks."""

"""Sizes of models and adapters, from which the bytes and operations of a step follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

_BF16: Final = 2
MXFP4_BITS: Final = 4.25
"""4 bits a weight, and one 8-bit scale for each 32 weights."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """A decoder model.

    Attributes:
        inner: inner width of an expert; of the MLP where the model has a single one.
        experts: of each layer; 1 for a dense model.
        active: experts that each token uses.
        expert_bits: bits of one weight of an expert; every other weight has 16.
        window: tokens that every second layer attends to; 0 where all layers attend to everything.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    experts: int = 1
    active: int = 1
    expert_bits: float = 16.0
    window: int = 0

    @property
    def attention_weights(self) -> int:
        """Weights of all layers' attention."""
        query, keys = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        return self.layers * self.hidden * (2 * query + keys)

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def expert_weights(self) -> int:
        """Weights of one expert of one layer."""
        return 3 * self.hidden * self.inner

    @property
    def expert_bytes(self) -> float:
        return self.expert_weights * self.expert_bits / 8

    @property
    def layer_token_bytes(self) -> int:
        """Bytes of one token's keys and values in one layer."""
        return 2 * _BF16 * self.kv_heads * self.head_dim

    def attended(self, context: int, *, windowed: bool) -> int:
        """Return the tokens that all layers together read for one token at the end of `context`."""
        if not (self.window and windowed):
            return self.layers * context
        short = self.layers // 2
        return (self.layers - short) * context + short * min(context, self.window)

    def attention_pair_bytes(self, rank: int) -> int:
        """Bytes of an adapter's pairs on q, k, v and o of all layers."""
        query, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        widths = 2 * (self.hidden + query) + 2 * (self.hidden + keys)
        return self.layers * rank * widths * _BF16

    def expert_pair_bytes(self, rank: int) -> int:
        """Bytes of an adapter's pairs on one expert of one layer: gate and up with a common A, and down."""
        return rank * (self.hidden + 2 * self.inner + self.inner + self.hidden) * _BF16

    def adapter_bytes(self, rank: int, *, experts: bool) -> int:
        """Bytes of a whole adapter.

        Args:
            experts: True if it has pairs on every expert (the MLP of a dense model), not on attention alone.
        """
        pairs = self.layers * self.experts * self.expert_pair_bytes(rank) if experts else 0
        return self.attention_pair_bytes(rank) + pairs


GPT_OSS_20B: Final = ModelSizes(
    "GPT-OSS-20B", 2880, 24, 64, 8, 64, 2880, 201_088, 32, 4, expert_bits=MXFP4_BITS, window=128
)
QWEN3_30B: Final = ModelSizes("Qwen3-30B-A3B", 2048, 48, 32, 4, 128, 768, 151_936, 128, 8)
LLAMA_8B: Final = ModelSizes("Llama-3.1-8B", 4096, 32, 32, 8, 128, 14_336, 128_256)


def unpacked(model: ModelSizes) -> ModelSizes:
    """Return the model with all weights in bf16."""
    return replace(model, expert_bits=16.0)

"""The Llama family (Touvron et al., 2023): RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import embedding

from kernels.activation import gated
from kernels.lora import LoraWeights, Segments
from worker_engine.checkpoint import Checkpoint
from worker_engine.config import ModelConfig
from worker_engine.layers.attention import Attention, AttentionPlan, KVCache
from worker_engine.layers.linear import LoraLinear, PackedLinear
from worker_engine.layers.norm import RMSNorm
from worker_engine.layers.rotary import Rotary

PACKED_MODULES = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Linear layers as computed, and the checkpoint's modules whose rows they stack."""

LayerLora = dict[str, LoraWeights | None]
"""The batch's adapters for one decoder layer, by name in `PACKED_MODULES`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's rows: decode rows first, then prefill chunks.

    Attributes:
        token_ids: int64 [rows].
        positions: int64 [rows].
        logit_rows: int64, rows whose next token is wanted; None for all, in order.
        lora: by decoder layer, empty when no row has an adapter.
        segments: rows by adapter.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionPlan
    logit_rows: torch.Tensor | None
    lora: Sequence[LayerLora]
    segments: Segments


class DecoderLayer:
    """Attention and feed-forward, each around a residual."""

    def __init__(self, config: ModelConfig, index: int, checkpoint: Checkpoint, rotary: Rotary) -> None:
        prefix = f"model.layers.{index}"
        hidden = config.hidden_size
        shapes = config.linear_shapes

        def packed(name: str, parent: str) -> LoraLinear:
            weights = [
                checkpoint.get(f"{prefix}.{parent}.{module}.weight", *shapes[module])
                for module in PACKED_MODULES[name]
            ]
            return LoraLinear(torch.cat(weights) if len(weights) > 1 else weights[0])

        self._index, self._config, self._rotary = index, config, rotary
        self._qkv, self._o = packed("qkv", "self_attn"), packed("o", "self_attn")
        self._gate_up, self._down = packed("gate_up", "mlp"), packed("down", "mlp")
        self._attention = Attention(config)
        self._input_norm = RMSNorm(
            checkpoint.get(f"{prefix}.input_layernorm.weight", hidden), config.rms_norm_eps
        )
        self._mlp_norm = RMSNorm(
            checkpoint.get(f"{prefix}.post_attention_layernorm.weight", hidden), config.rms_norm_eps
        )

    def __call__(
        self, x: torch.Tensor, batch: Batch, cache: KVCache, angles: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """[rows, hidden] -> [rows, hidden]; writes this layer's keys and values."""
        lora: LayerLora = batch.lora[self._index] if batch.lora else {}
        heads, kv_heads = self._config.num_heads, self._config.num_kv_heads
        qkv = self._qkv.forward(self._input_norm(x), lora.get("qkv"), batch.segments)
        qkv = qkv.view(x.shape[0], heads + 2 * kv_heads, self._config.head_dim)
        turned = heads + kv_heads
        self._rotary.rotate_(qkv[:, :turned], angles)
        mixed = self._attention(cache, self._index, qkv[:, :heads], qkv[:, heads:], batch.attention)
        x = self._o.forward(mixed, lora.get("o"), batch.segments, residual=x)
        gate_up = self._gate_up.forward(self._mlp_norm(x), lora.get("gate_up"), batch.segments)
        return self._down.forward(gated(gate_up), lora.get("down"), batch.segments, residual=x)


class Llama:
    """A Llama checkpoint on one device."""

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Loads all weights. Raises CheckpointError naming a tensor that is missing or misshapen."""
        size = (config.vocab_size, config.hidden_size)
        rotary = Rotary(config, max_model_len, dtype=dtype, device=device)
        self._rotary = rotary
        self._embedding = checkpoint.get("model.embed_tokens.weight", *size)
        self._layers = [DecoderLayer(config, i, checkpoint, rotary) for i in range(config.num_layers)]
        self._norm = RMSNorm(checkpoint.get("model.norm.weight", config.hidden_size), config.rms_norm_eps)
        tied = config.tie_word_embeddings or "lm_head.weight" not in checkpoint
        self._head = PackedLinear(self._embedding if tied else checkpoint.get("lm_head.weight", *size))

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """One step: [rows] tokens in, float32 logits [len(logit_rows), vocab] out."""
        x = embedding(batch.token_ids, self._embedding)
        angles = self._rotary.at(batch.positions)
        for layer in self._layers:
            x = layer(x, batch, cache, angles)
        if batch.logit_rows is not None:
            x = x[batch.logit_rows]
        return self._head(self._norm(x)).float()

"""Gemma 3's text model (2025, arXiv:2503.19786): norms on both sides, five local layers to a global one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.model_config import (
    LayerAttention,
    ModelConfig,
    read_layer_types,
    read_num_layers,
)
from worker_engine.checkpoint.rope_config import Rope, read_rope_section
from worker_engine.layers.attention import KVCache
from worker_engine.layers.linear import LayerLora
from worker_engine.layers.rotary import Angles
from worker_engine.layers.tops import Tops
from worker_engine.models.decoder import Batch, Decoder, DecoderLayer, LayerWeights

GLOBAL_THETA: Final = 1_000_000.0
LOCAL_THETA: Final = 10_000.0
SIZES: Final = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}
"""What the published multimodal checkpoints leave out."""


class Gemma3Layer(DecoderLayer):
    """Norms around attention and feed-forward, by head too; every gain is stored less one."""

    activation = "gelu_tanh"
    stacks = False

    def _load_norms(self, weights: LayerWeights) -> None:
        self._head_norm = weights.head_norm(offset=1.0)
        self._input_norm = weights.norm("input_layernorm", offset=1.0)
        self._attention_norm = weights.norm("post_attention_layernorm", offset=1.0)
        self._mlp_norm = weights.norm("pre_feedforward_layernorm", offset=1.0)
        self._down_norm = weights.norm("post_feedforward_layernorm", offset=1.0)

    def __call__(self, x: torch.Tensor, batch: Batch, cache: KVCache, angles: Angles) -> torch.Tensor:
        lora: LayerLora = batch.lora[self._index] if batch.lora else {}
        mixed = self._attend(self._input_norm(x, batch.norms), lora, batch, cache, angles)
        attended = self._o.forward(mixed, lora.get("o"), batch.segments)
        x = self._attention_norm(attended, batch.norms).add_(x)
        inner = self._gate(self._mlp_norm(x, batch.norms), lora, batch)
        down = self._down.forward(inner, lora.get("down"), batch.segments)
        return self._down_norm(down, batch.norms).add_(x)


class Gemma3(Decoder):
    ARCHITECTURE = "Gemma3ForCausalLM"
    MODEL_TYPE = "gemma3_text"
    layer = Gemma3Layer
    norm_offset = 1.0

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("hidden_activation", "gelu_pytorch_tanh")
        fields.must_be_absent("attn_logit_softcapping", "no Gemma 3 checkpoint caps its scores")
        fields.must_be_absent("use_bidirectional_attention", "generation is causal")
        return ModelConfig.read(
            fields,
            cls.ARCHITECTURE,
            _read_attention(fields),
            biased=("qkv", "o") if fields.flag("attention_bias", False) else (),
            query_scale=fields.number("query_pre_attn_scalar", 256),
            logit_softcap=fields.number("final_logit_softcapping")
            if "final_logit_softcapping" in fields
            else 0.0,
            tie_word_embeddings=True,
            defaults=SIZES,
        )

    def embed(self, token_ids: torch.Tensor, tops: Tops | None) -> torch.Tensor:
        """Scaled by the root of the hidden size, which is first rounded to the model's dtype."""
        x = super().embed(token_ids, tops)
        return x.mul_(torch.tensor(x.shape[1] ** 0.5, dtype=x.dtype).item())


class Gemma3Multimodal(Gemma3):
    """A checkpoint that sees images as well: its text model, without the rest."""

    ARCHITECTURE = "Gemma3ForConditionalGeneration"
    MODEL_TYPE = "gemma3"
    prefix = "language_model."
    unused = ("vision_tower.", "multi_modal_projector.")

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        text = fields.section("text_config")
        if text is None:
            raise fields.error("text_config", "is missing")
        config = super().read(text)
        return replace(
            config,
            dtype=fields.text("dtype", fields.text("torch_dtype", config.dtype)),
            eos_token_ids=fields.token_ids("eos_token_id") or config.eos_token_ids,
        )


def _read_attention(fields: Fields) -> list[LayerAttention]:
    """Every sixth layer sees all tokens, or as `layer_types` says; the others slide, on their own angles."""
    layers = read_num_layers(fields)
    every = fields.whole("sliding_window_pattern", 6)
    window = fields.whole("sliding_window", 4096)
    positions = fields.whole("max_position_embeddings", SIZES["max_position_embeddings"])
    both = fields.section("rope_parameters")
    if both is not None:
        both.only("full_attention", "sliding_attention")
    everywhere = both.section("full_attention") if both else fields.section("rope_scaling")
    local = both.section("sliding_attention") if both else None
    theta = fields.number("rope_theta", GLOBAL_THETA)
    wide = read_rope_section(everywhere, theta, positions) if everywhere else Rope(theta)
    theta = fields.number("rope_local_base_freq", LOCAL_THETA)
    near = read_rope_section(local, theta, positions) if local else Rope(theta)
    slides = [(index + 1) % every != 0 for index in range(layers)]
    return [
        LayerAttention(width, near if width else wide) for width in read_layer_types(fields, window, slides)
    ]

"""Qwen2 and Qwen2.5 (2024, arXiv:2407.10671, arXiv:2412.15115): queries, keys and values have a bias."""

from __future__ import annotations

from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.model_config import (
    LayerAttention,
    ModelConfig,
    read_layer_types,
    read_num_layers,
)
from worker_engine.checkpoint.rope_config import read_rope
from worker_engine.models.decoder import Decoder


class Qwen2(Decoder):
    """The layers from `max_window_layers` on may slide; the released checkpoints leave that off."""

    ARCHITECTURE = "Qwen2ForCausalLM"
    MODEL_TYPE = "qwen2"

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("hidden_act", "silu")
        return ModelConfig.read(fields, cls.ARCHITECTURE, read_attention(fields), biased=("qkv",))


def read_attention(fields: Fields) -> list[LayerAttention]:
    """`use_sliding_window`, `sliding_window` and `max_window_layers`, or `layer_types`, and RoPE."""
    layers = read_num_layers(fields)
    window, first = 0, layers
    if fields.flag("use_sliding_window", False) and "sliding_window" in fields:
        window, first = fields.whole("sliding_window"), fields.whole("max_window_layers", 28, least=0)
    rope = read_rope(fields)
    slides = [index >= first for index in range(layers)]
    return [LayerAttention(width, rope) for width in read_layer_types(fields, window, slides)]

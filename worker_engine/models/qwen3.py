"""Qwen3 (2025, arXiv:2505.09388): queries and keys are normalised by head, and no bias."""

from __future__ import annotations

from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.models.decoder import Decoder, DecoderLayer, LayerWeights
from worker_engine.models.qwen2 import read_attention


class Qwen3Layer(DecoderLayer):
    def _load_norms(self, weights: LayerWeights) -> None:
        super()._load_norms(weights)
        self._head_norm = weights.head_norm()


class Qwen3(Decoder):
    """Heads of 128 whatever the hidden size; windows as in Qwen2."""

    ARCHITECTURE = "Qwen3ForCausalLM"
    MODEL_TYPE = "qwen3"
    layer = Qwen3Layer

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("hidden_act", "silu")
        biased = ("qkv", "o") if fields.flag("attention_bias", False) else ()
        attention = read_attention(fields)
        return ModelConfig.read(
            fields, cls.ARCHITECTURE, attention, biased=biased, defaults={"head_dim": 128}
        )

"""Mistral (Jiang et al., 2023, arXiv:2310.06825): one sliding window in every layer, or none."""

from __future__ import annotations

from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.model_config import LayerAttention, ModelConfig, read_num_layers
from worker_engine.checkpoint.rope_config import read_rope
from worker_engine.models.decoder import Decoder


class Mistral(Decoder):
    """Heads may be wider or narrower than hidden / heads. The window is version 0.1's."""

    ARCHITECTURE = "MistralForCausalLM"
    MODEL_TYPE = "mistral"

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("hidden_act", "silu")
        fields.must_be_absent("attention_bias", "Mistral has none")
        fields.must_be_absent("layer_types", "that is Ministral; Mistral's layers are alike")
        window = fields.whole("sliding_window") if "sliding_window" in fields else 0
        attention = [LayerAttention(window, read_rope(fields))] * read_num_layers(fields)
        return ModelConfig.read(fields, cls.ARCHITECTURE, attention)

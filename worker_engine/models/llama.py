"""Llama 2 and 3 (Touvron et al., 2023, arXiv:2307.09288; Grattafiori et al., 2024, arXiv:2407.21783)."""

from __future__ import annotations

from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.model_config import LayerAttention, ModelConfig, read_num_layers
from worker_engine.checkpoint.rope_config import read_rope
from worker_engine.models.decoder import Decoder


class Llama(Decoder):
    """The decoder as it is; biases where the config has them."""

    ARCHITECTURE = "LlamaForCausalLM"
    MODEL_TYPE = "llama"

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("hidden_act", "silu")
        biased = ["qkv", "o"] if fields.flag("attention_bias", False) else []
        biased += ["gate_up", "down"] if fields.flag("mlp_bias", False) else []
        attention = [LayerAttention(0, read_rope(fields))] * read_num_layers(fields)
        return ModelConfig.read(fields, cls.ARCHITECTURE, attention, biased=biased)

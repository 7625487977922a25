"""Mixtral (Jiang et al., 2024, arXiv:2401.04088): Mistral's attention, and experts in every layer."""

from __future__ import annotations

from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.experts_config import ExpertsConfig
from worker_engine.checkpoint.model_config import LayerAttention, ModelConfig, read_num_layers
from worker_engine.checkpoint.rope_config import read_rope
from worker_engine.models.decoder import Decoder
from worker_engine.models.sparse import SparseLayer


class MixtralLayer(SparseLayer):
    """Plain attention beside experts."""

    stacks = True


class Mixtral(Decoder):
    """The weights of a row's experts always sum to 1."""

    ARCHITECTURE = "MixtralForCausalLM"
    MODEL_TYPE = "mixtral"
    layer = MixtralLayer

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("hidden_act", "silu")
        fields.must_be_absent("attention_bias", "Mixtral has none")
        fields.must_be_absent("layer_types", "Mixtral's layers are alike")
        layers = read_num_layers(fields)
        window = fields.whole("sliding_window") if "sliding_window" in fields else 0
        # Newer files of transformers may call the number of experts as Qwen's do.
        name = "num_local_experts" if "num_local_experts" in fields else "num_experts"
        number, top_k = fields.whole(name), fields.whole("num_experts_per_tok")
        if top_k > number:
            raise fields.error("num_experts_per_tok", f"{top_k} is more than the {number} experts")
        experts = ExpertsConfig(
            num_experts=number,
            top_k=top_k,
            intermediate_size=fields.whole("intermediate_size"),
            normalizes=True,
            layers=frozenset(range(layers)),
        )
        attention = [LayerAttention(window, read_rope(fields))] * layers
        return ModelConfig.read(fields, cls.ARCHITECTURE, attention, experts=experts)

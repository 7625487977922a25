"""Qwen3-MoE (2025, arXiv:2505.09388): Qwen3's attention, and experts without a shared one."""

from __future__ import annotations

from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.model_config import LayerAttention, ModelConfig, read_num_layers
from worker_engine.checkpoint.rope_config import read_rope
from worker_engine.models.decoder import Decoder
from worker_engine.models.qwen2_moe import read_experts
from worker_engine.models.qwen3 import Qwen3Layer
from worker_engine.models.sparse import SparseLayer


class Qwen3MoeLayer(SparseLayer, Qwen3Layer):
    """Queries and keys are normalised by head."""

    stacks = True


class Qwen3Moe(Decoder):
    """One window in every layer, or none."""

    ARCHITECTURE = "Qwen3MoeForCausalLM"
    MODEL_TYPE = "qwen3_moe"
    layer = Qwen3MoeLayer

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("hidden_act", "silu")
        fields.must_be_absent("layer_types", "Qwen3-MoE's layers are alike")
        slides = fields.flag("use_sliding_window", False)
        window = fields.whole("sliding_window", 4096) if slides else 0
        return ModelConfig.read(
            fields,
            cls.ARCHITECTURE,
            [LayerAttention(window, read_rope(fields))] * read_num_layers(fields),
            biased=("qkv", "o") if fields.flag("attention_bias", False) else (),
            experts=read_experts(fields),
        )

"""Qwen1.5-MoE and Qwen2-MoE (2024, arXiv:2407.10671): experts beside one that every row passes."""

from __future__ import annotations

from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.experts_config import ExpertsConfig
from worker_engine.checkpoint.model_config import (
    LayerAttention,
    ModelConfig,
    read_layer_types,
    read_num_layers,
)
from worker_engine.checkpoint.rope_config import read_rope
from worker_engine.models.decoder import Decoder
from worker_engine.models.sparse import SparseLayer


class Qwen2MoeLayer(SparseLayer):
    """Plain attention beside experts."""

    stacks = True


class Qwen2Moe(Decoder):
    """Queries, keys and values have a bias. Every second layer before `max_window_layers` may slide."""

    ARCHITECTURE = "Qwen2MoeForCausalLM"
    MODEL_TYPE = "qwen2_moe"
    layer = Qwen2MoeLayer

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("hidden_act", "silu")
        return ModelConfig.read(
            fields,
            cls.ARCHITECTURE,
            _read_attention(fields),
            biased=("qkv",) if fields.flag("qkv_bias", True) else (),
            experts=read_experts(fields, shared_size=fields.whole("shared_expert_intermediate_size")),
        )


def read_experts(fields: Fields, *, shared_size: int = 0) -> ExpertsConfig:
    """Read the experts of Qwen's families, and which layers have them."""
    layers, step = read_num_layers(fields), fields.whole("decoder_sparse_step", 1)
    dense = fields.wholes("mlp_only_layers")
    # Newer files of Qwen3-MoE call the number of experts as Mixtral's do.
    name = "num_local_experts" if "num_local_experts" in fields else "num_experts"
    number, top_k = fields.whole(name), fields.whole("num_experts_per_tok")
    if top_k > number:
        raise fields.error("num_experts_per_tok", f"{top_k} is more than the {number} experts")
    return ExpertsConfig(
        num_experts=number,
        top_k=top_k,
        intermediate_size=fields.whole("moe_intermediate_size"),
        normalizes=fields.flag("norm_topk_prob", False),
        layers=frozenset(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0),
        shared_size=shared_size,
        shared_scales=bool(shared_size),
    )


def _read_attention(fields: Fields) -> list[LayerAttention]:
    layers = read_num_layers(fields)
    window, last = 0, 0
    if fields.flag("use_sliding_window", False):
        window, last = fields.whole("sliding_window", 4096), fields.whole("max_window_layers", 28, least=0)
    rope = read_rope(fields)
    slides = [index % 2 == 0 and index < last for index in range(layers)]
    return [LayerAttention(width, rope) for width in read_layer_types(fields, window, slides)]

"""DeepSeek-V2 and V3 (2024, arXiv:2405.04434, arXiv:2412.19437): latent attention, and expert groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Final

import torch

from kernels.moe import GroupRule
from kernels.rotary import rotate_
from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.experts_config import ExpertsConfig
from worker_engine.checkpoint.latent_config import LatentConfig
from worker_engine.checkpoint.model_config import PATHS, LayerAttention, ModelConfig, read_num_layers
from worker_engine.checkpoint.rope_config import YarnScaling, read_rope
from worker_engine.layers.attention import KVCache
from worker_engine.layers.latent_attention import LatentAttention
from worker_engine.layers.linear import LayerLora, LoraLinear
from worker_engine.layers.linear_weight import DenseWeight
from worker_engine.layers.norm import RMSNorm
from worker_engine.layers.rotary import Angles, in_halves
from worker_engine.models.decoder import Batch, Decoder, LayerWeights
from worker_engine.models.sparse import SparseLayer

INNER_EPS: Final = 1e-6
"""Of the norms of latent vectors, whatever `rms_norm_eps` says."""


class DeepseekLayer(SparseLayer):
    """Queries may have a latent vector too; the rotated key is one for all heads."""

    def _load_attention(self, weights: LayerWeights) -> None:
        config, latent = weights.config, weights.config.latent
        assert latent is not None
        self._latent = latent
        names = [name for name in latent.packed_modules if name not in ("kv_b", "o")]
        self._projections = {name: weights.linear(name) for name in names}
        self._query_norm = None
        if latent.query_rank:
            self._query_norm = _load_norm(weights, "q_a_layernorm", latent.query_rank)
        self._norm = _load_norm(weights, "kv_a_layernorm", latent.rank)
        path, shape = weights.paths["kv_b_proj"], config.module_shapes["kv_b_proj"]
        # Not packed, since the absorbed form multiplies each head's part by itself.
        dense = DenseWeight(weights.checkpoint.get(f"{weights.prefix}{path}.weight", *shape))
        self._projections["kv_b"] = kv_b = LoraLinear(dense)
        self._latent_attention = LatentAttention(latent, config.num_heads, config.attention_scale, kv_b)

    @property
    def attention_linears(self) -> dict[str, LoraLinear]:
        return {**self._projections, "o": self._o}

    def _attend(
        self, x: torch.Tensor, lora: LayerLora, batch: Batch, cache: KVCache, angles: Angles
    ) -> torch.Tensor:
        """Map [rows, hidden] to [rows, heads * value_dim]; writes latent vectors and rotated keys."""
        nope, rank = self._latent.nope_dim, self._latent.rank
        q = self._queries(x, lora, batch).view(len(x), self._heads, -1)
        line = self._projections["kv_a"].forward(x, lora.get("kv_a"), batch.segments)
        line[:, :rank] = self._norm(line[:, :rank].contiguous(), batch.norms)
        rotated = self._rotate(torch.cat((q[..., nope:], line[:, None, rank:]), dim=1), angles)
        q[..., nope:], line[:, rank:] = rotated[:, :-1], rotated[:, -1]
        cache.write(self._index, batch.attention.slots, line)
        pages = cache.layer(self._index)
        return self._latent_attention(q, pages, batch.attention, lora.get("kv_b"), batch.segments)

    def _queries(self, x: torch.Tensor, lora: LayerLora, batch: Batch) -> torch.Tensor:
        """Map [rows, hidden] to [rows, heads * query_dim]."""
        if self._query_norm is None:
            return self._projections["q"].forward(x, lora.get("q"), batch.segments)
        latent = self._projections["q_a"].forward(x, lora.get("q_a"), batch.segments)
        latent = self._query_norm(latent, batch.norms)
        return self._projections["q_b"].forward(latent, lora.get("q_b"), batch.segments)

    def _rotate(self, x: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Rotate [rows, heads, rope_dim]; interleaved pairs come out in halves, which changes no score."""
        if self._latent.interleaved:
            x = in_halves(x)
        rotate_(x, *angles)
        return x


class DeepseekV2(Decoder):
    """A softmax over all experts; weights are never divided by their sum."""

    ARCHITECTURE = "DeepseekV2ForCausalLM"
    MODEL_TYPE = "deepseek_v2"
    layer = DeepseekLayer
    paths: ClassVar[Mapping[str, str]] = {
        name: path.replace("shared_expert.", "shared_experts.") for name, path in PATHS.items()
    }

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("scoring_func", "softmax")
        fields.must_be("norm_topk_prob", False)
        fields.must_be_absent("mlp_bias", "no DeepSeek-V2 checkpoint has biases in its feed-forward")
        method = fields.text("topk_method", "greedy")
        if method not in ("greedy", "group_limited_greedy"):
            raise fields.error(
                "topk_method", f"{method!r} is not served, only greedy and group_limited_greedy"
            )
        return _read(cls, fields, _read_experts(fields, GroupRule("softmax"), limited=method != "greedy"))


class DeepseekV3(DeepseekV2):
    """Sigmoid scores; a bias of each expert corrects the choice, and a group counts by its two best."""

    ARCHITECTURE = "DeepseekV3ForCausalLM"
    MODEL_TYPE = "deepseek_v3"

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("scoring_func", "sigmoid")
        fields.must_be("topk_method", "noaux_tc")
        experts = _read_experts(fields, GroupRule("sigmoid", best=2), limited=True)
        experts = replace(experts, normalizes=fields.flag("norm_topk_prob", True), corrected=True)
        return _read(cls, fields, experts, interleaved=fields.flag("rope_interleave", True))

    @classmethod
    def unused_names(cls, config: ModelConfig) -> tuple[str, ...]:
        """Pass over the layer that predicts a second token, which follows the decoder's layers."""
        return (*cls.unused, f"model.layers.{config.num_layers}.")


def _read(
    family: type[Decoder], fields: Fields, experts: ExpertsConfig, *, interleaved: bool = True
) -> ModelConfig:
    """Read the fields that both families have."""
    fields.must_be("hidden_act", "silu")
    rope = read_rope(fields, mscale=True)
    latent = LatentConfig(
        query_rank=fields.whole("q_lora_rank") if "q_lora_rank" in fields else 0,
        rank=fields.whole("kv_lora_rank"),
        nope_dim=fields.whole("qk_nope_head_dim"),
        rope_dim=fields.whole("qk_rope_head_dim"),
        value_dim=fields.whole("v_head_dim"),
        interleaved=interleaved,
    )
    if latent.rope_dim % 2:
        raise fields.error("qk_rope_head_dim", f"must be even, got {latent.rope_dim}")
    biased = ["kv_a", "o", *(["q_a"] if latent.query_rank else [])]
    config = ModelConfig.read(
        fields,
        family.ARCHITECTURE,
        [LayerAttention(0, rope)] * read_num_layers(fields),
        biased=biased if fields.flag("attention_bias", False) else (),
        query_scale=latent.query_dim,
        defaults={"head_dim": latent.rope_dim},
        experts=experts,
    )
    gain = rope.scaling.score_gain if isinstance(rope.scaling, YarnScaling) else 1.0
    scale = config.attention_scale * gain
    return replace(config, attention_scale=scale, num_kv_heads=1, head_dim=latent.rope_dim, latent=latent)


def _read_experts(fields: Fields, rule: GroupRule, *, limited: bool) -> ExpertsConfig:
    """Read the experts, which layers have them, and the numbers of the family's rule.

    Args:
        limited: True if the router chooses among groups.
    """
    layers, size = read_num_layers(fields), fields.whole("moe_intermediate_size")
    number, top_k = fields.whole("n_routed_experts"), fields.whole("num_experts_per_tok")
    groups, kept = (fields.whole("n_group"), fields.whole("topk_group")) if limited else (1, 1)
    if number % groups or number // groups < rule.best:
        raise fields.error("n_group", f"{groups} does not divide the {number} experts into groups")
    if kept > groups or top_k > kept * (number // groups):
        raise fields.error(
            "num_experts_per_tok", f"{top_k} is more than {kept} of {groups} groups of {number} experts have"
        )
    factor = fields.number("routed_scaling_factor", 1.0)
    dense, step = fields.whole("first_k_dense_replace", 0, least=0), fields.whole("moe_layer_freq", 1)
    shared = fields.whole("n_shared_experts", 0, least=0)
    return ExpertsConfig(
        num_experts=number,
        top_k=top_k,
        intermediate_size=size,
        normalizes=False,
        layers=frozenset(index for index in range(dense, layers) if index % step == 0),
        shared_size=size * shared,
        groups=replace(rule, groups=groups, kept=kept, factor=factor),
    )


def _load_norm(weights: LayerWeights, name: str, size: int) -> RMSNorm:
    full = f"{weights.prefix}self_attn.{name}"
    path = full.removeprefix(weights.root)
    return RMSNorm(weights.checkpoint.get(f"{full}.weight", size), INNER_EPS, path=path)

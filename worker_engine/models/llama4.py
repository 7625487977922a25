"""Llama 4's text model (2025): attention in chunks, layers without rotation, and experts of scaled inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch

from kernels.attention import attend
from kernels.moe import GroupRule
from kernels.rotary import rotate_
from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.experts_config import ExpertsConfig
from worker_engine.checkpoint.model_config import (
    PATHS,
    LayerAttention,
    ModelConfig,
    QueryGrowth,
    read_num_layers,
)
from worker_engine.checkpoint.rope_config import read_rope
from worker_engine.config import PAGE_SIZE
from worker_engine.errors import CheckpointError
from worker_engine.layers.attention import KVCache
from worker_engine.layers.chunked_attention import chunked
from worker_engine.layers.linear import LayerLora
from worker_engine.layers.norm import HeadNorm
from worker_engine.layers.rotary import Angles, in_halves
from worker_engine.models.decoder import Batch, Decoder, LayerWeights
from worker_engine.models.sparse import SparseLayer


class Llama4Layer(SparseLayer):
    """Layers with rotation normalise queries and keys after it; the others scale queries by position."""

    def _load_attention(self, weights: LayerWeights) -> None:
        super()._load_attention(weights)
        config = weights.config
        self._kind = config.attention[self._index]
        self._lengths: HeadNorm | None = None
        if self._kind.normalizes:
            lines = torch.ones(self._heads + self._kv_heads, self._head_dim)
            self._lengths = HeadNorm(lines.to(weights.checkpoint.device), config.rms_norm_eps)

    def _attend(
        self, x: torch.Tensor, lora: LayerLora, batch: Batch, cache: KVCache, angles: Angles
    ) -> torch.Tensor:
        qkv = self._qkv.forward(x, lora.get("qkv"), batch.segments)
        qkv = qkv.view(len(x), -1, self._head_dim)
        self._apply_positions(qkv, batch.positions, angles)
        plan = batch.attention
        cache.write(self._index, plan.slots, qkv[:, self._heads :])
        if self._kind.chunk:
            plan = chunked(plan, self._kind.chunk)
        pages = cache.layer(self._index)
        return attend(qkv[:, : self._heads], pages, plan, scale=self._attention.scale).flatten(1)

    def _apply_positions(self, qkv: torch.Tensor, positions: torch.Tensor, angles: Angles) -> None:
        """Apply the positions to queries and keys in place."""
        if self._kind.rotates:
            both = qkv[:, : self._heads + self._kv_heads]
            both.copy_(in_halves(both))
            rotate_(both, *angles)
            if self._lengths is not None:
                self._lengths(both)
        elif self._kind.growth is not None:
            queries = qkv[:, : self._heads]
            queries.copy_(queries.float() * _factors(self._kind.growth, positions))


def _factors(growth: QueryGrowth, positions: torch.Tensor) -> torch.Tensor:
    """Return float32 [rows, 1, 1]."""
    steps = torch.floor((positions.float() + 1.0) / growth.interval)
    return (torch.log1p(steps) * growth.rate + 1.0).view(-1, 1, 1)


class Llama4(Decoder):
    """A checkpoint of the text model alone."""

    ARCHITECTURE = "Llama4ForCausalLM"
    MODEL_TYPE = "llama4_text"
    layer = Llama4Layer
    paths: ClassVar[Mapping[str, str]] = {
        **{name: path.replace("mlp.", "feed_forward.") for name, path in PATHS.items()},
        "router": "feed_forward.router",
    }

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("hidden_act", "silu")
        config = ModelConfig.read(
            fields,
            cls.ARCHITECTURE,
            _read_attention(fields),
            biased=("qkv", "o") if fields.flag("attention_bias", False) else (),
            defaults={"head_dim": 128},
            experts=_read_experts(fields),
        )
        return replace(config, intermediate_size=fields.whole("intermediate_size_mlp", 16384))


class Llama4Multimodal(Llama4):
    """A checkpoint that sees images as well: its text model, without the rest."""

    ARCHITECTURE = "Llama4ForConditionalGeneration"
    MODEL_TYPE = "llama4"
    prefix = "language_model."
    unused = ("vision_model.", "multi_modal_projector.")

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
    """Every fourth layer is not rotated, or as `no_rope_layers` says; the others attend in chunks."""
    layers, rope = read_num_layers(fields), read_rope(fields, theta=500_000.0)
    every = fields.whole("no_rope_layer_interval", 4)
    rotates = fields.wholes("no_rope_layers") or [(index + 1) % every for index in range(layers)]
    kinds = fields.texts("layer_types") or tuple(
        "chunked_attention" if rotated else "full_attention" for rotated in rotates
    )
    if len(rotates) < layers or len(kinds) < layers:
        raise fields.error("layer_types", f"or no_rope_layers name fewer than the {layers} layers")
    for kind in kinds:
        if kind not in ("full_attention", "chunked_attention"):
            raise fields.error("layer_types", f"{kind!r} is not served, only full and chunked attention")
    size = fields.whole("attention_chunk_size", 8192)
    if size % PAGE_SIZE:
        raise fields.error("attention_chunk_size", f"{size} is not served, only multiples of {PAGE_SIZE}")
    growth = None
    if _tunes(fields):
        growth = QueryGrowth(fields.whole("floor_scale", 8192), fields.number("attn_scale", 0.1))
    normalizes = fields.flag("use_qk_norm", True)
    return [
        LayerAttention(
            0,
            rope,
            bool(rotated),
            size if kind == "chunked_attention" else 0,
            normalizes and bool(rotated),
            growth,
        )
        for rotated, kind in zip(rotates[:layers], kinds[:layers], strict=True)
    ]


def _tunes(fields: Fields) -> bool:
    """Return True for temperature tuning, which is a number in the first published files."""
    name = "attn_temperature_tuning"
    try:
        return fields.flag(name, True)
    except CheckpointError:
        return bool(fields.whole(name, least=0))


def _read_experts(fields: Fields) -> ExpertsConfig:
    """Read the experts; the shared one has their size."""
    layers, size = read_num_layers(fields), fields.whole("intermediate_size")
    number, top_k = fields.whole("num_local_experts", 16), fields.whole("num_experts_per_tok", 1)
    if top_k > number:
        raise fields.error("num_experts_per_tok", f"{top_k} is more than the {number} experts")
    step = fields.whole("interleave_moe_layer_step", 1)
    return ExpertsConfig(
        num_experts=number,
        top_k=top_k,
        intermediate_size=size,
        normalizes=False,
        layers=frozenset(fields.wholes("moe_layers") or range(step - 1, layers, step)),
        shared_size=size,
        groups=GroupRule("sigmoid"),
        weighs_inputs=True,
        transposed=True,
    )

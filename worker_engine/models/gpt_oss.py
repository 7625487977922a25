"""GPT-OSS (OpenAI, 2025, arXiv:2508.10925): attention with sinks, and experts with biases in every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from kernels.quantization import prepare
from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.experts_config import ExpertsConfig
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.checkpoint.interleaved import gate_then_up
from worker_engine.checkpoint.model_config import (
    PATHS,
    LayerAttention,
    ModelConfig,
    read_layer_types,
    read_num_layers,
)
from worker_engine.checkpoint.rope_config import read_rope
from worker_engine.layers.attention import Attention
from worker_engine.layers.linear_weight import LinearWeight, pack, packed_weight
from worker_engine.layers.sparse_mlp import SparseMlp
from worker_engine.models.decoder import Decoder, LayerWeights
from worker_engine.models.linear_loader import store
from worker_engine.models.sparse import SparseLayer


class GptOssLayer(SparseLayer):
    """Sinks take part in the softmax; the experts' activation is a clamped SwiGLU."""

    stacks = False

    def __init__(self, index: int, weights: LayerWeights) -> None:
        super().__init__(index, weights)
        config = weights.config
        sinks = weights.checkpoint.get(f"{weights.prefix}self_attn.sinks", config.num_heads)
        self._attention = Attention(
            config.attention_scale, config.attention[index].window, sinks.float().contiguous()
        )

    def _load_experts(self, weights: LayerWeights, experts: ExpertsConfig) -> SparseMlp:
        checkpoint, prefix, count = weights.checkpoint, f"{weights.prefix}mlp.experts.", experts.num_experts
        hidden, inner = weights.config.hidden_size, experts.intermediate_size
        gate_up_bias = checkpoint.get(f"{prefix}gate_up_proj_bias", count, 2 * inner)
        return SparseMlp(
            weights.linear("router"),
            _load_stack(checkpoint, f"{prefix}gate_up_proj", count, 2 * inner, hidden, interleaved=True),
            _load_stack(checkpoint, f"{prefix}down_proj", count, hidden, inner),
            experts.top_k,
            inner,
            experts.normalizes,
            activation="clamped_swiglu",
            gate_up_bias=gate_then_up(gate_up_bias, 1),
            down_bias=checkpoint.get(f"{prefix}down_proj_bias", count, hidden),
        )


class GptOss(Decoder):
    """Layers alternate between a window and full attention.

    The softmax over a row's chosen logits equals that over all logits, divided by its sum over the chosen:
    `normalizes` of the other families.
    """

    ARCHITECTURE = "GptOssForCausalLM"
    MODEL_TYPE = "gpt_oss"
    layer = GptOssLayer
    paths: ClassVar[Mapping[str, str]] = {**PATHS, "router": "mlp.router"}

    @classmethod
    def read(cls, fields: Fields) -> ModelConfig:
        fields.must_be("hidden_act", "silu")
        fields.must_be("swiglu_alpha", 1.702)
        fields.must_be("swiglu_limit", 7.0)
        layers = read_num_layers(fields)
        number, top_k = fields.whole("num_local_experts"), fields.whole("num_experts_per_tok")
        if top_k > number:
            raise fields.error("num_experts_per_tok", f"{top_k} is more than the {number} experts")
        experts = ExpertsConfig(
            num_experts=number,
            top_k=top_k,
            intermediate_size=fields.whole("intermediate_size"),
            normalizes=True,
            layers=frozenset(range(layers)),
            interleaved=True,
            a_on_inputs=True,
        )
        window = fields.whole("sliding_window") if "sliding_window" in fields else 0
        rope = read_rope(fields, theta=150000.0)
        slides = [bool(window) and layer % 2 == 0 for layer in range(layers)]
        return ModelConfig.read(
            fields,
            cls.ARCHITECTURE,
            [LayerAttention(width, rope) for width in read_layer_types(fields, window, slides)],
            biased=("qkv", "o", "router") if fields.flag("attention_bias", True) else ("router",),
            defaults={"head_dim": 64},
            experts=experts,
        )


def _load_stack(
    checkpoint: Checkpoint, name: str, count: int, out: int, inner: int, *, interleaved: bool = False
) -> list[LinearWeight]:
    """Load the experts' weights [out, in] from MXFP4 or [experts, in, out], or those packed earlier."""
    scheme = checkpoint.scheme(name)
    packs = scheme is not None and checkpoint.multiplies_quantized
    bits = scheme.native_bits if scheme is not None and packs else 16
    mapped = [checkpoint.packed.take(f"{name}.{expert}", bits, out, inner) for expert in range(count)]
    found = [packed_weight(matrix) for matrix in mapped if matrix is not None]
    if len(found) == count:
        checkpoint.pass_over(name, count, inner, out)
        return found
    load = _plain if scheme is None else _quantized
    weights = load(checkpoint, name, (count, out, inner), interleaved=interleaved)
    return [store(checkpoint, f"{name}.{expert}", weight) for expert, weight in enumerate(weights)]


def _plain(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int, int], *, interleaved: bool
) -> Iterator[LinearWeight]:
    """Yield the experts' weights one by one, of a tensor [experts, in, out]."""
    count, out, inner = shape
    for weight in checkpoint.get(name, count, inner, out):
        yield pack(gate_then_up(weight.T, 0) if interleaved else weight.T.contiguous())


def _quantized(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int, int], *, interleaved: bool
) -> Iterator[LinearWeight]:
    """Yield MXFP4 experts as the device multiplies them, widened otherwise: bf16 holds the values exactly."""
    for weight in checkpoint.quantized_experts(name, *shape):
        if interleaved:
            weight = replace(
                weight, codes=gate_then_up(weight.codes, 0), scales=gate_then_up(weight.scales, 0)
            )
        matrix = None
        if checkpoint.multiplies_quantized:
            matrix = prepare(weight, checkpoint.dtype, checkpoint.device)
        if matrix is None:
            yield pack(weight.dequantize().to(checkpoint.device, checkpoint.dtype))
        else:
            yield packed_weight(matrix)

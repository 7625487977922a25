"""Decoder layers with a mixture of experts in place of the dense feed-forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from worker_engine.checkpoint.experts_config import ExpertsConfig
from worker_engine.layers.linear import Float32Linear, LayerLora, LoraLinear
from worker_engine.layers.linear_weight import DenseWeight, LinearWeight, pack, packed_weight
from worker_engine.layers.native_sparse_mlp import NativeSparseMlp
from worker_engine.layers.sparse_mlp import SharedExpert, SparseMlp
from worker_engine.layers.stack import StackPart
from worker_engine.models.decoder import Batch, DecoderLayer, LayerWeights
from worker_engine.models.linear_loader import load_weight, store

_MIXTRAL: tuple[str, tuple[str, str, str]] = ("block_sparse_moe", ("w1", "w3", "w2"))
_COMMON: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


class SparseLayer(DecoderLayer):
    """A layer that has experts where the configuration says so, and is dense elsewhere.

    Families whose attention is also that of `kernels.native.stack` set `stacks`.
    """

    stacks = False

    def _load_feed_forward(self, weights: LayerWeights) -> None:
        experts = weights.config.experts
        self._sparse: SparseMlp | None = None
        self._native: NativeSparseMlp | None = None
        if experts is not None and self._index in experts.layers:
            self._sparse = self._load_experts(weights, experts)
            self._native = NativeSparseMlp.build(self._sparse)
        else:
            super()._load_feed_forward(weights)

    def _load_experts(self, weights: LayerWeights, experts: ExpertsConfig) -> SparseMlp:
        """Load the experts of this layer. Raises CheckpointError."""
        return load_sparse_mlp(weights, experts)

    @property
    def linears(self) -> dict[str, LoraLinear]:
        return super().linears if self._sparse is None else self.attention_linears

    def _feed_forward(
        self, x: torch.Tensor, residual: torch.Tensor, lora: LayerLora, batch: Batch
    ) -> torch.Tensor:
        if self._sparse is None:
            return super()._feed_forward(x, residual, lora, batch)
        return (self._native or self._sparse)(x, residual, lora, batch.segments)

    def stack_part(self, rope: int) -> StackPart:
        moe = None if self._native is None else self._native.stacked()
        return super().stack_part(rope)._replace(moe=moe)


def load_sparse_mlp(weights: LayerWeights, experts: ExpertsConfig) -> SparseMlp:
    """Load a layer's experts, one matrix each or one tensor for all. Raises CheckpointError."""
    mixtral = f"{weights.prefix}block_sparse_moe.gate.weight" in weights.checkpoint
    holder, names = _MIXTRAL if mixtral else (weights.paths["router"].rpartition(".")[0], _COMMON)
    prefix = f"{weights.prefix}{holder}.experts."
    hidden, inner = weights.config.hidden_size, experts.intermediate_size
    if f"{prefix}gate_up_proj" in weights.checkpoint:
        gate_up = _stack(weights, f"{prefix}gate_up_proj", experts, 2 * inner, hidden)
        down = _stack(weights, f"{prefix}down_proj", experts, hidden, inner)
    else:
        wide = [(names[0], (inner, hidden)), (names[1], (inner, hidden))]
        gate_up = _singles(weights, prefix, "gate_up", experts.num_experts, wide)
        down = _singles(weights, prefix, "down", experts.num_experts, [(names[2], (hidden, inner))])
    correction = None
    if experts.corrected:
        name = f"{weights.prefix}{holder}.gate.e_score_correction_bias"
        correction = weights.checkpoint.get(name, experts.num_experts, dtype=torch.float32)
    return SparseMlp(
        _load_router(weights, experts, holder),
        gate_up,
        down,
        experts.top_k,
        inner,
        experts.normalizes,
        _load_shared(weights, experts),
        groups=experts.groups,
        correction=correction,
        weighs_inputs=experts.weighs_inputs,
    )


def _load_router(weights: LayerWeights, experts: ExpertsConfig, holder: str) -> LoraLinear:
    """Load the router; those that choose among groups compute in float32."""
    if experts.groups is None:
        return weights.linear("router", holder=holder)
    shape = (experts.num_experts, weights.config.hidden_size)
    name = f"{weights.prefix}{weights.paths['router']}.weight"
    return Float32Linear(DenseWeight(weights.checkpoint.get(name, *shape, dtype=torch.float32)))


def _load_shared(weights: LayerWeights, experts: ExpertsConfig) -> SharedExpert | None:
    if not experts.shared_size:
        return None
    scale = weights.linear("shared_scale") if experts.shared_scales else None
    return SharedExpert(weights.linear("shared_gate_up"), weights.linear("shared_down"), scale)


def _singles(
    weights: LayerWeights, prefix: str, name: str, count: int, modules: Sequence[tuple[str, tuple[int, int]]]
) -> list[LinearWeight]:
    return [
        load_weight(
            weights.checkpoint,
            f"{prefix}{expert}.{name}",
            [(f"{prefix}{expert}.{module}.weight", shape) for module, shape in modules],
        )
        for expert in range(count)
    ]


def _stack(
    weights: LayerWeights, name: str, experts: ExpertsConfig, out: int, inner: int
) -> list[LinearWeight]:
    """Load [experts, out, in] or [experts, in, out], or the experts as they were packed earlier."""
    checkpoint, count = weights.checkpoint, experts.num_experts
    shape = (count, inner, out) if experts.transposed else (count, out, inner)
    mapped = [checkpoint.packed.take(f"{name}.{expert}", 16, out, inner) for expert in range(count)]
    found = [packed_weight(matrix) for matrix in mapped if matrix is not None]
    if len(found) == count:
        checkpoint.pass_over(name, *shape)
        return found
    dense = checkpoint.get(name, *shape)
    dense = dense.mT if experts.transposed else dense
    return [
        store(checkpoint, f"{name}.{expert}", pack(weight.contiguous()))
        for expert, weight in enumerate(dense)
    ]

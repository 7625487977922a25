"""A feed-forward of experts whose pairs are multiplied in one native call."""

from __future__ import annotations

import dataclasses
from typing import Final, Self

import torch

from kernels import native
from kernels.activation import gated
from kernels.lora import Segments
from kernels.moe import route
from kernels.moe.native_experts import Addends, ExpertLora, NativeExperts
from kernels.moe.native_moe import NativeMoe
from worker_engine.layers.linear import LayerLora, LoraLinear
from worker_engine.layers.sparse_mlp import SparseMlp

_EXPERT_MODULES: Final = ("expert_gate_up", "expert_fused", "expert_down")
_KNOWN: Final = frozenset({"router", "gate_up", "down", "top_k", "intermediate_size", "normalizes", "shared"})
"""Fields of `SparseMlp` that the native code computes; layers that set others take PyTorch's operations."""


class NativeSparseMlp:
    """Computes what a `SparseMlp` does."""

    def __init__(self, sparse: SparseMlp, experts: NativeExperts) -> None:
        self._sparse, self._experts = sparse, experts

    @classmethod
    def build(cls, sparse: SparseMlp) -> Self | None:
        """Return the layer in native form; None where the native code cannot compute it."""
        others = [field for field in dataclasses.fields(sparse) if field.name not in _KNOWN]
        if native.LIBRARY is None or any(getattr(sparse, field.name) != field.default for field in others):
            return None
        gate_up = [weight.matrix for weight in sparse.gate_up if weight.matrix is not None]
        down = [weight.matrix for weight in sparse.down if weight.matrix is not None]
        whole = len(gate_up) == len(down) == len(sparse.gate_up)
        if not whole or not NativeExperts.fits(gate_up, down):
            return None
        return cls(sparse, NativeExperts(gate_up, down, sparse.top_k))

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, lora: LayerLora, segments: Segments
    ) -> torch.Tensor:
        """Compute `SparseMlp.__call__`."""
        weights = [None if found is None else found.weights for found in map(lora.get, _EXPERT_MODULES)]
        held = None
        if not segments.empty and any(weights):
            held = ExpertLora.build(self._experts.count, *weights)
            if held is None:
                return self._sparse(x, residual, lora, segments)
        sparse = self._sparse
        logits = sparse.router.forward(x, lora.get("router"), segments)
        row_weights, chosen = route(logits, sparse.top_k, normalize=sparse.normalizes)
        addends = self._addends(x, residual, lora, segments)
        owners = segments.adapters if held is not None else ()
        return self._experts(x, row_weights, chosen, addends, held, owners)

    def _addends(
        self, x: torch.Tensor, residual: torch.Tensor, lora: LayerLora, segments: Segments
    ) -> Addends:
        shared = self._sparse.shared
        if shared is None:
            return Addends(residual)
        inner = gated(shared.gate_up.forward(x, lora.get("shared_gate_up"), segments))
        y = shared.down.forward(inner, lora.get("shared_down"), segments)
        if shared.scale is None:
            return Addends(residual, y)
        return Addends(residual, y, shared.scale.forward(x, lora.get("shared_scale"), segments))

    def stacked(self) -> NativeMoe | None:
        """Return the layer for `kernels.native.stack`; None where a matrix is not in native blocks."""
        shared = self._sparse.shared
        linears = {"router": self._sparse.router}
        if shared is not None:
            linears |= {"shared_gate_up": shared.gate_up, "shared_down": shared.down}
            linears |= {} if shared.scale is None else {"shared_scale": shared.scale}
        if not all(_is_block(linear) for linear in linears.values()):
            return None
        matrices = {name: linear.packed.matrix for name, linear in linears.items()}
        return NativeMoe(self._experts, normalizes=self._sparse.normalizes, **matrices)  # type: ignore[arg-type]


def _is_block(linear: LoraLinear) -> bool:
    return linear.packed.matrix is not None and linear.bias is None

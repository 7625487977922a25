"""A feed-forward of experts, of which each row passes the few that its router chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.activation import gated
from kernels.lora import Segments, apply_lora
from kernels.moe import Worklist, route
from worker_engine.layers.linear import LayerLora, LoraLinear
from worker_engine.layers.linear_weight import LinearWeight


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The expert that every row passes, times the sigmoid of a gate of its own, if it has one.

    Attributes:
        scale: [1, hidden], the gate.
    """

    gate_up: LoraLinear
    down: LoraLinear
    scale: LoraLinear | None = None

    def __call__(self, x: torch.Tensor, lora: LayerLora, segments: Segments) -> torch.Tensor:
        """Map [rows, hidden] to float32 [rows, hidden]."""
        inner = gated(self.gate_up.forward(x, lora.get("shared_gate_up"), segments))
        y = self.down.forward(inner, lora.get("shared_down"), segments)
        if self.scale is None:
            return y.float()
        scale = self.scale.forward(x, lora.get("shared_scale"), segments)
        return y.float() * scale.float().sigmoid()


@dataclass(frozen=True, slots=True)
class SparseMlp:
    """The experts of one decoder layer, with their router.

    Attributes:
        gate_up: by expert, [2 * inter, hidden].
        down: by expert, [hidden, inter].
        normalizes: True if a row's weights are divided by their sum.
    """

    router: LoraLinear
    gate_up: Sequence[LinearWeight]
    down: Sequence[LinearWeight]
    top_k: int
    intermediate_size: int
    normalizes: bool
    shared: SharedExpert | None = None

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, lora: LayerLora, segments: Segments
    ) -> torch.Tensor:
        """Map the normed x [rows, hidden] to [rows, hidden], the residual added; rounded once."""
        logits = self.router.forward(x, lora.get("router"), segments)
        weights, experts = route(logits, self.top_k, normalize=self.normalizes)
        y = self._experts(x, weights, experts, lora, segments)
        if self.shared is not None:
            y += self.shared(x, lora, segments)
        return y.add_(residual).to(x.dtype)

    def _experts(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        lora: LayerLora,
        segments: Segments,
    ) -> torch.Tensor:
        """Return the weighted sum of each row's experts, float32 [rows, hidden]."""
        adapted = any(lora.get(name) for name in ("expert_gate_up", "expert_fused", "expert_down"))
        work = Worklist.build(experts, len(self.gate_up), segments.adapters if adapted else None)
        pairs = x[work.rows]
        both = work.multiply(pairs, 2 * self.intermediate_size, self._gate_up)
        _add(both, pairs, lora, ("expert_gate_up", "expert_fused"), work)
        inner = gated(both)
        y = work.multiply(inner, x.shape[1], self._down)
        _add(y, inner, lora, ("expert_down",), work)
        return work.combine(y, weights)

    def _gate_up(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        return self.gate_up[expert].multiply(x, None, None)

    def _down(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        return self.down[expert].multiply(x, None, None)


def _add(out: torch.Tensor, x: torch.Tensor, lora: LayerLora, names: Sequence[str], work: Worklist) -> None:
    """Add the adapters of the pairs' experts to out [pairs, columns] in place."""
    for name in names:
        held = lora.get(name)
        if held is not None and held.weights is not None and work.segments is not None:
            apply_lora(out, x, held.weights, work.segments)

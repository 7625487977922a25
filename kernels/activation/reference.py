"""Reference implementation of gated activations: the specification of every other one."""

from __future__ import annotations

import math

import torch


def gated(
    gate_up: torch.Tensor, kind: str, *, interleaved: bool = False, alpha: float = 1.702, limit: float = 7.0
) -> torch.Tensor:
    """Map [rows, 2 * inter] to [rows, inter]: f(gate) * up, or (up + 1) * f(gate) for `clamped_swiglu`."""
    if interleaved:
        gate, up = gate_up[:, ::2], gate_up[:, 1::2]
    else:
        gate, up = gate_up.chunk(2, dim=1)
    if kind == "silu":
        return gate * torch.sigmoid(gate) * up
    if kind == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        return 0.5 * gate * (1 + torch.tanh(inner)) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)

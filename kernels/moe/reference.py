"""Reference implementation of a layer of experts, row by row: the specification of every other one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kernels.activation import Kind
from kernels.activation.reference import gated
from kernels.lora import LoraPair


class ExpertPairs(NamedTuple):
    """One adapter's pairs on one expert; None where it changes nothing. `fused` has one A for gate and up."""

    gate: LoraPair | None = None
    up: LoraPair | None = None
    fused: LoraPair | None = None
    down: LoraPair | None = None


def sparse_mlp(
    x: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    adapters: Sequence[Sequence[ExpertPairs]] = (),
    row_adapter: Sequence[int] = (),
    *,
    activation: Kind = "silu",
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `sum_e w_e down_e(silu(gate_e x) * up_e x)` of each row's experts, with its adapter's pairs.

    Biases are added to the products of `gate_up` and `down`, before the activation and the weighted sum.

    Args:
        x: [rows, hidden].
        weights, experts: [rows, top_k], as `kernels.moe.route` returns them.
        gate_up: [experts, 2 * inter, hidden], the gate's rows before up's.
        down: [experts, hidden, inter].
        adapters: by adapter index, then by expert.
        row_adapter: the adapter's index of each row, -1 for none; empty for no adapters.
        gate_up_bias: [experts, 2 * inter]. down_bias: [experts, hidden].
    """
    out = torch.zeros_like(x)
    for row, chosen in enumerate(experts.tolist()):
        adapter = row_adapter[row] if row_adapter else -1
        for choice, expert in enumerate(chosen):
            pairs = adapters[adapter][expert] if adapter >= 0 else ExpertPairs()
            both = gate_up[expert] @ x[row] + _delta(pairs.fused, x[row], len(gate_up[expert]))
            both = both if gate_up_bias is None else both + gate_up_bias[expert]
            gate, up = both.chunk(2)
            gate = gate + _delta(pairs.gate, x[row], len(gate))
            up = up + _delta(pairs.up, x[row], len(up))
            inner = gated(torch.cat((gate, up)).unsqueeze(0), activation)[0]
            y = down[expert] @ inner + _delta(pairs.down, inner, len(down[expert]))
            y = y if down_bias is None else y + down_bias[expert]
            out[row] += weights[row, choice].to(x.dtype) * y
    return out


def _delta(pair: LoraPair | None, x: torch.Tensor, width: int) -> torch.Tensor:
    return x.new_zeros(width) if pair is None else (x @ pair.a.T) @ pair.b

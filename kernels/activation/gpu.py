"""Gated activations on CUDA: what the kernel needs of its arguments, and its launch."""

from __future__ import annotations

import torch

from kernels.activation.triton_kernels import gated_kernel

BLOCK = 1024
"""Columns of a block: 8 a thread of 4 warps, so that gate and up are 16-byte loads in bf16."""


def gated(
    gate_up: torch.Tensor,
    kind: str,
    *,
    interleaved: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`kernels.activation.gated` in one launch; shapes were checked there."""
    rows, inter = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, inter)) if out is None else out
    for name, tensor in (("gate_up", gate_up), ("out", out)):
        if tensor.stride(1) != 1 or tensor.device != gate_up.device:
            raise ValueError(
                f"{name} of shape {list(tensor.shape)} has strides {tensor.stride()} on {tensor.device}; "
                f"expected the last dimension contiguous on {gate_up.device}"
            )
    if rows and inter:
        gated_kernel[(rows, -(-inter // BLOCK))](
            gate_up,
            gate_up.stride(0),
            out,
            out.stride(0),
            alpha,
            limit,
            INTER=inter,
            BLOCK=BLOCK,
            KIND=kind,
            INTERLEAVED=interleaved,
        )
    return out

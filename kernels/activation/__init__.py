"""Gated activations: a function of the gate times the up projection, from one packed matrix.

`reference.py` says what they mean. CUDA takes the Triton kernel (`gpu.py`) where `kernels.selection` has
it on; everything else takes `cpu.py`, plain PyTorch.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch

from kernels import selection
from kernels.activation import cpu

__all__ = ["Kind", "gated"]

Kind = Literal["silu", "gelu_tanh", "clamped_swiglu"]
KINDS: Final = get_args(Kind)


def gated(
    gate_up: torch.Tensor,
    kind: Kind = "silu",
    *,
    interleaved: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The feed-forward's activation, computed in float32 or as exactly.

    Args:
        gate_up: [rows, 2 * inter], the last dimension contiguous: the gate's half, then up's; or, with
            `interleaved`, gate and up by turns.
        kind: `silu` (Llama, Qwen: SwiGLU), `gelu_tanh` (Gemma: GeGLU) or `clamped_swiglu` (GPT-OSS).
        alpha, limit: of `clamped_swiglu` alone.
        out: [rows, inter], where to write; allocated when None.

    Returns:
        [rows, inter], dtype of gate_up.

    Raises:
        ValueError: a kind that there is not, or arguments that do not fit each other.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up has shape {list(gate_up.shape)}; expected [rows, 2 * inter]")
    if out is not None and (
        out.shape != (gate_up.shape[0], gate_up.shape[1] // 2) or out.dtype != gate_up.dtype
    ):
        expected = f"[{gate_up.shape[0]}, {gate_up.shape[1] // 2}], {gate_up.dtype}"
        raise ValueError(f"out has shape {list(out.shape)}, {out.dtype}; expected {expected}")
    if selection.runs("activation", gate_up):
        from kernels.activation import gpu

        return gpu.gated(gate_up, kind, interleaved=interleaved, alpha=alpha, limit=limit, out=out)
    return cpu.gated(gate_up, kind, interleaved=interleaved, alpha=alpha, limit=limit, out=out)

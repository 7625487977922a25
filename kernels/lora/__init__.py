"""Multi-LoRA: y += (x A^T) B, each row of the batch with its own adapter or none.

`apply_lora` is the public operation. `reference.py` says what it means, one row at a time; an
implementation for a device is one module with the same signature as `cpu.apply_lora`, chosen here:
`gpu.py` for CUDA where GRAFTWORK_WORKER_TRITON=1 asks for it, `cpu.py` (plain GEMMs) for everything else.
"""

from __future__ import annotations

import os
from typing import Final

import torch

from kernels.lora import cpu
from kernels.lora.segments import Segments
from kernels.lora.weights import LoraPair, LoraWeights, Owners, concatenate

__all__ = ["LoraPair", "LoraWeights", "Owners", "Segments", "apply_lora", "concatenate"]


TRITON: Final = os.environ.get("GRAFTWORK_WORKER_TRITON") == "1"
"""Whether CUDA rows take the Triton kernels. Off unless asked for: they are compiled and tested in Triton's
interpreter, which runs programs one after another, but have not run on a GPU yet."""


def apply_lora(out: torch.Tensor, x: torch.Tensor, weights: LoraWeights, segments: Segments) -> None:
    """Adds each row's adapter to `out` in place; rows without adapter keep their bits.

    Args:
        out: [rows, columns], last dimension contiguous; base output.
        x: [rows, in], same dtype and device.

    Raises:
        ValueError: on CUDA, arguments whose shapes, dtypes or devices do not fit each other.
    """
    if TRITON and out.is_cuda:
        from kernels.lora import gpu

        gpu.apply_lora(out, x, weights, segments)
    else:
        cpu.apply_lora(out, x, weights, segments)

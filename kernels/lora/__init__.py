"""Multi-LoRA: y += (x A^T) B, each row of the batch with its own adapter or none.

`apply_lora` and `embed_lora` are the public operations. `reference.py` says what they mean, one row at a
time; an implementation for a device is one module with the same signatures, chosen here: `gpu.py` where
`kernels.selection` has the Triton kernels on, `cpu.py` for everything else.
"""

from __future__ import annotations

import torch

from kernels import selection
from kernels.lora import cpu
from kernels.lora.pair import LoraPair
from kernels.lora.segments import Segments
from kernels.lora.weights import LoraWeights, Owners, concatenate

__all__ = ["LoraPair", "LoraWeights", "Owners", "Segments", "apply_lora", "concatenate", "embed_lora"]


def apply_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    weights: LoraWeights,
    segments: Segments,
    *,
    gain: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    """Adds each row's adapter to `out` in place; rows without adapter keep their bits.

    The form of lm_head as well: its slice is as wide as the vocabulary.

    Args:
        out: [rows, columns], last dimension contiguous; base output.
        x: [rows, in], last dimension contiguous, same dtype and device.
        gain: float32 [adapters, columns], DoRA's magnitude over the norm of the merged columns; 1 for
            adapters without. The row's whole output, its bias left out, is multiplied.
        bias: [columns], the bias that `out` contains; only `gain` needs it.

    Raises:
        ValueError: arguments whose shapes, dtypes or devices do not fit each other, or rows of an adapter
            that `weights` lacks.
    """
    if selection.runs("lora", out):
        from kernels.lora import gpu

        gpu.apply_lora(out, x, weights, segments, gain=gain, bias=bias)
    else:
        cpu.apply_lora(out, x, weights, segments, gain=gain, bias=bias)


def embed_lora(out: torch.Tensor, token_ids: torch.Tensor, weights: LoraWeights, segments: Segments) -> None:
    """Adds each row's adapter to an embedding in place: `out[row] += A[:, token_ids[row]] @ B`.

    Args:
        out: [rows, hidden], last dimension contiguous; base embedding.
        token_ids: int64 [rows], each less than A's columns.
        weights: of one slice; A is [rank, vocabulary] (PEFT's `lora_embedding_A`), B [rank, hidden].

    Raises:
        ValueError: as `apply_lora`; on CPU also for a token outside the vocabulary.
    """
    if selection.runs("lora", out):
        from kernels.lora import gpu

        gpu.embed_lora(out, token_ids, weights, segments)
    else:
        cpu.embed_lora(out, token_ids, weights, segments)

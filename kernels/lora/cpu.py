"""Multi-LoRA in plain GEMMs: the CPU path, and what any device without its own kernels runs."""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from kernels.lora.segments import Run, Segments
from kernels.lora.weights import LoraWeights


def apply_lora(out: torch.Tensor, x: torch.Tensor, weights: LoraWeights, segments: Segments) -> None:
    """Adds each row's adapter to `out` in place; rows without adapter keep their bits.

    Short runs share one shrink GEMM over all adapters' ranks, whose foreign columns are then set to zero
    (set, not multiplied: another tenant's overflow must not become this row's NaN), and one expand GEMM
    per slice. Long runs have GEMMs of their own. See README.md for the cost.

    Args:
        out: [rows, columns], contiguous rows; base output.
        x: [rows, in], same dtype.
    """
    for part, rows in enumerate(segments.short):
        shrunk = linear(x[rows], weights.a)
        shrunk.masked_fill_(segments.mask(part, weights.owner), 0)
        target = out[rows]
        for piece in weights.slices:
            target[:, piece.columns].addmm_(shrunk[:, piece.ranks], piece.b)
    for run in segments.runs:
        _apply_run(out, x, weights, run)


def _apply_run(out: torch.Tensor, x: torch.Tensor, weights: LoraWeights, run: Run) -> None:
    rows = slice(run.start, run.stop)
    for piece in weights.slices:
        first, last = piece.offsets[run.adapter]
        if first < last:
            base = piece.ranks.start
            shrunk = linear(x[rows], weights.a[base + first : base + last])
            out[rows, piece.columns].addmm_(shrunk, piece.b[first:last])

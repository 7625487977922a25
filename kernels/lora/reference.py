"""What multi-LoRA means, row by row: the specification that every implementation is tested against."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.lora.weights import LoraPair


def apply_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    pairs: Sequence[Sequence[LoraPair | None]],
    widths: Sequence[int],
    row_adapter: Sequence[int],
) -> torch.Tensor:
    """`out[row, slice] + (x[row] @ a^T) @ b` of the row's adapter, for every slice that it changes.

    Args:
        out: [rows, sum(widths)], base output, left as it is.
        x: [rows, in].
        pairs: by slice, then by adapter index; None where the adapter leaves the slice alone.
        widths: output columns of each slice.
        row_adapter: adapter index of each row, -1 for none.
    """
    result = out.clone()
    for row, adapter in enumerate(row_adapter):
        if adapter < 0:
            continue
        column = 0
        for by_adapter, width in zip(pairs, widths, strict=True):
            pair = by_adapter[adapter]
            if pair is not None:
                result[row, column : column + width] += (x[row] @ pair.a.T) @ pair.b
            column += width
    return result

"""Reference implementation of multi-LoRA, row by row: the specification of every other one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.lora.pair import LoraPair

Pairs = Sequence[Sequence[LoraPair | None]]
"""By slice, then by adapter index; None where the adapter does not change the slice."""

Mix = Sequence[tuple[int, float]]
"""The adapters of one row, each with its weight; empty for none."""


def apply_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    pairs: Pairs,
    widths: Sequence[int],
    row_adapter: Sequence[int],
    *,
    gain: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `out[row, slice] + (x[row] @ a^T) @ b` of the row's adapter, for every slice that it changes.

    Args:
        out: [rows, sum(widths)], base output, not modified.
        x: [rows, in].
        pairs: by slice, then by adapter index.
        widths: output columns of each slice.
        row_adapter: adapter index of each row, -1 for none.
        gain: [adapters, columns], factor of the row's output without bias (DoRA).
        bias: [columns], the bias that `out` contains.
    """
    result = mix(out, x, pairs, widths, [[(adapter, 1.0)] * (adapter >= 0) for adapter in row_adapter])
    if gain is not None:
        for row, adapter in enumerate(row_adapter):
            if adapter >= 0:
                constant = torch.zeros_like(result[row]) if bias is None else bias.to(result.dtype)
                result[row] = (result[row] - constant) * gain[adapter].to(result.dtype) + constant
    return result


def mix(
    out: torch.Tensor, x: torch.Tensor, pairs: Pairs, widths: Sequence[int], row_mix: Sequence[Mix]
) -> torch.Tensor:
    """`apply_lora` with any number of weighted adapters per row: the sum of their weighted products."""
    result = out.clone()
    for row, members in enumerate(row_mix):
        for adapter, weight in members:
            column = 0
            for by_adapter, width in zip(pairs, widths, strict=True):
                pair = by_adapter[adapter]
                if pair is not None:
                    result[row, column : column + width] += weight * ((x[row] @ pair.a.T) @ pair.b)
                column += width
    return result


def embed_lora(
    out: torch.Tensor, token_ids: Sequence[int], pairs: Sequence[LoraPair | None], row_adapter: Sequence[int]
) -> torch.Tensor:
    """Return `out[row] + a[:, token] @ b` of the row's adapter: an embedding's input is one-hot.

    Args:
        out: [rows, hidden], base embedding, not modified.
        pairs: by adapter index; a is [rank, vocabulary].
    """
    result = out.clone()
    for row, (token, adapter) in enumerate(zip(token_ids, row_adapter, strict=True)):
        pair = pairs[adapter] if adapter >= 0 else None
        if pair is not None:
            result[row] += pair.a[:, token] @ pair.b
    return result

"""The LoRA weights of the adapters of one batch, laid side by side for one linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class LoraPair:
    """One adapter's weights for one slice of a linear layer; the scaling is folded into `b`.

    Attributes:
        a: [rank, in], shrinks.
        b: [rank, out], expands (PEFT's `lora_B` transposed, times the scaling).
    """

    a: torch.Tensor
    b: torch.Tensor

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes


@dataclass(frozen=True, slots=True)
class SliceWeights:
    """One slice of a packed linear layer (q of q/k/v, say).

    Attributes:
        columns: the slice's columns of the output.
        ranks: the slice's columns of the shrunk activations, which are `b`'s rows.
        b: [sum of ranks, out of this slice].
        offsets: for each adapter, its (first, last + 1) row of `b`; equal where it has no weights.
    """

    columns: slice
    ranks: slice
    b: torch.Tensor
    offsets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """All adapters of a batch for one linear layer, at their real ranks, nothing padded.

    Attributes:
        a: [sum of ranks over slices and adapters, in], slice-major.
        owner: int64 [sum of ranks], adapter index of each row of `a`; layers of one layout share it.
        slices: the slices that some adapter changes.
        kept: what a device's implementation derived from the weights, by its own name.
    """

    a: torch.Tensor
    owner: torch.Tensor
    slices: tuple[SliceWeights, ...]
    kept: dict[str, object] = field(default_factory=dict, compare=False, repr=False)


Layout = tuple[tuple[int, ...], ...]
"""Ranks by slice, then by adapter."""


class Owners:
    """Owner tensors by layout, so that layers with one layout share one tensor and thereby one mask."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device
        self._by_layout: dict[Layout, torch.Tensor] = {}

    def get(self, layout: Layout) -> torch.Tensor:
        """int64 [sum of ranks]: the adapter index of each column of the shrunk activations."""
        if layout not in self._by_layout:
            columns = [adapter for ranks in layout for adapter, rank in enumerate(ranks) for _ in range(rank)]
            self._by_layout[layout] = torch.tensor(columns, dtype=torch.int64, device=self._device)
        return self._by_layout[layout]


def concatenate(
    pairs: Sequence[Sequence[LoraPair | None]], widths: Sequence[int], owners: Owners
) -> LoraWeights | None:
    """Lays adapters side by side for one linear layer.

    Args:
        pairs: by slice, then by adapter index; None where the adapter leaves the slice alone.
        widths: output columns of each slice.
        owners: shared among the layers of a batch.

    Returns:
        None when no adapter changes this layer.
    """
    layout: Layout = tuple(tuple(pair.rank if pair else 0 for pair in row) for row in pairs)
    if not any(any(ranks) for ranks in layout):
        return None
    slices: list[SliceWeights] = []
    column = first_rank = 0
    for row, ranks, width in zip(pairs, layout, widths, strict=True):
        if total := sum(ranks):
            b = torch.cat([pair.b for pair in row if pair is not None])
            bounds = tuple((sum(ranks[:i]), sum(ranks[: i + 1])) for i in range(len(ranks)))
            slices.append(
                SliceWeights(slice(column, column + width), slice(first_rank, first_rank + total), b, bounds)
            )
        column += width
        first_rank += total
    a = torch.cat([pair.a for row in pairs for pair in row if pair is not None])
    return LoraWeights(a, owners.get(layout), tuple(slices))

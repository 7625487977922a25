"""The LoRA weights of the adapters of one batch, for one linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np
import torch

from kernels.lora.layout import Layout, Ranks
from kernels.lora.pair import LoraPair, Pairs


@dataclass(frozen=True, slots=True)
class RankMatrices:
    """A row per rank; `Layout` says whose.

    Attributes:
        a: [rows, in].
        b: by slice, [rows, out of the slice].
    """

    a: torch.Tensor
    b: tuple[torch.Tensor, ...]


class PlacedRows(Protocol):
    """Rows that lie anywhere in a memory: `rank_rows.RankRows`."""

    @property
    def memory(self) -> torch.Tensor: ...

    def gather(self) -> RankMatrices:
        """A copy of them as matrices, side by side."""


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """All adapters of a batch for one linear layer; each device's own arrangement is made on first use.

    Attributes:
        layout: shared by layers of the same ranks, places and shape.
        kept: arrangements of the weights, by the name of what derived them.
    """

    layout: Layout
    kept: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of_pairs(cls, pairs: Pairs, layout: Layout) -> LoraWeights:
        """Weights as they were loaded, each in tensors of its own."""
        return cls(layout, {"pairs": pairs})

    @classmethod
    def of_rows(cls, rows: PlacedRows, layout: Layout) -> LoraWeights:
        """Weights of which each row may lie anywhere; the ranks in `rows` follow one another as in `layout`,
        adapter by adapter, an adapter's slice by slice."""
        return cls(layout, {"rows": rows})

    @property
    def device(self) -> torch.device:
        if "rows" in self.kept:
            return cast(PlacedRows, self.kept["rows"]).memory.device
        return next(pair.a.device for row in self.pairs for pair in row if pair is not None)

    @property
    def pairs(self) -> Pairs:
        """By slice, then by adapter; copies where rows may lie anywhere."""
        if "pairs" not in self.kept:
            self.kept["pairs"] = tuple(
                tuple(self._pair(piece, adapter) for adapter in range(self.layout.adapters))
                for piece in range(len(self.layout.columns))
            )
        return cast(Pairs, self.kept["pairs"])

    @property
    def matrices(self) -> RankMatrices:
        """One matrix A and one matrix B per slice; copied together where each adapter has its own tensors."""
        if "matrices" not in self.kept and "pairs" not in self.kept:
            self.kept["matrices"] = cast(PlacedRows, self.kept["rows"]).gather()
        if "matrices" not in self.kept:
            live = [pair for by_slice in zip(*self.pairs, strict=True) for pair in by_slice if pair]
            empty = torch.empty(0, dtype=self.layout.dtype, device=self.device)
            b = tuple(
                torch.cat(rows) if (rows := [pair.b for pair in row if pair is not None]) else empty
                for row in self.pairs
            )
            self.kept["matrices"] = RankMatrices(torch.cat([pair.a for pair in live]), b)
        return cast(RankMatrices, self.kept["matrices"])

    def _pair(self, piece: int, adapter: int) -> LoraPair | None:
        layout = self.layout
        rank, first = layout.ranks[piece][adapter], layout.first[piece][adapter]
        if not rank:
            return None
        a, b = (
            torch.from_numpy(np.asarray(rows[piece][first : first + rank])) for rows in (layout.a, layout.b)
        )
        return LoraPair(self.matrices.a[a.to(self.device)], self.matrices.b[piece][b.to(self.device)])


class Owners:
    """Which adapter owns which ranks: layers of one layout share one object, and thereby a batch's plan."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._layouts: dict[tuple[object, ...], Layout] = {}

    def get(self, pairs: Pairs, widths: Sequence[int]) -> Layout | None:
        """The layout of a layer; None when every rank is 0.

        Raises:
            ValueError: pairs that do not fit each other, the widths or the device.
        """
        ranks: Ranks = tuple(tuple(pair.rank if pair else 0 for pair in row) for row in pairs)
        if not any(any(row) for row in ranks):
            return None
        first = next(pair for row in pairs for pair in row if pair is not None)
        self._check(pairs, widths, first)
        key = (ranks, tuple(widths), first.a.shape[1], first.a.dtype)
        if key not in self._layouts:
            self._layouts[key] = Layout.build(ranks, widths, first.a.shape[1], first.a.dtype)
        return self._layouts[key]

    def _check(self, pairs: Pairs, widths: Sequence[int], first: LoraPair) -> None:
        inner, dtype = first.a.shape[1], first.a.dtype
        for index, (row, width) in enumerate(zip(pairs, widths, strict=True)):
            for adapter, pair in enumerate(row):
                if pair is None:
                    continue
                for name, tensor, columns in (("a", pair.a, inner), ("b", pair.b, width)):
                    fits = tensor.shape == (pair.rank, columns) and tensor.dtype == dtype
                    if not fits or tensor.device.type != self._device.type:
                        raise ValueError(
                            f"{name} of slice {index}, adapter {adapter} has shape {list(tensor.shape)}, "
                            f"{tensor.dtype} on {tensor.device}; "
                            f"expected [{pair.rank}, {columns}], {dtype} on {self._device}"
                        )


def concatenate(
    pairs: Sequence[Sequence[LoraPair | None]], widths: Sequence[int], owners: Owners
) -> LoraWeights | None:
    """Brings adapters together for one linear layer.

    Args:
        pairs: by slice, then by adapter index; None where the adapter leaves the slice alone.
        widths: output columns of each slice.
        owners: shared among the layers of a batch.

    Returns:
        None when no adapter changes this layer.

    Raises:
        ValueError: pairs that do not fit each other, the widths or the device of `owners`.
    """
    held = tuple(tuple(row) for row in pairs)
    layout = owners.get(held, widths)
    return None if layout is None else LoraWeights.of_pairs(held, layout)

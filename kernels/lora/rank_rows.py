"""Where each rank's weights lie in device memory: in a stacked tensor, or in pages of a pool.

A rank of an adapter is one row of A and one row of B. The kernels find both through a table of element
offsets, so that weights need neither a common rank nor a common place: loading an adapter writes its
pages and its part of the table, and moves nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from kernels.lora.weights import LoraWeights

ALIGNMENT: Final = 8
"""Elements; with 2-byte weights it makes every row start on 16 bytes, what one load instruction takes."""

Bounds = tuple[tuple[tuple[int, int], ...], ...]
"""By slice, then by adapter: (first, last + 1) row of the table; equal where the adapter has no weights."""

Pages = tuple[Sequence[int], Sequence[int]]
"""The pages of an adapter's A and B for one slice, in rank order."""


@dataclass(frozen=True, slots=True)
class RankRows:
    """The row table of one linear layer over every adapter that is resident.

    Attributes:
        memory: the tensor from whose first element offsets count; gives the weights' dtype.
        a: int64 [ranks], offset of each rank's row of A, which has `inner` elements.
        b: int64 [ranks], offset of each rank's row of B, as long as its slice has columns.
        scale: float32 [ranks], what the rank's product is multiplied with.
        bounds: see `Bounds`.
        columns: each slice's columns of the output.
        inner: columns of the layer's input.
        aligned: every offset and every slice's first column is a multiple of `ALIGNMENT`, so that rows are
            loaded 16 bytes at a time.
        sources: tensors that the offsets point into, kept alive.
    """

    memory: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    scale: torch.Tensor
    bounds: Bounds
    columns: tuple[slice, ...]
    inner: int
    aligned: bool
    sources: tuple[torch.Tensor, ...] = ()

    @property
    def widest(self) -> int:
        """Last output column that some slice reaches, exclusive."""
        return max((piece.stop for piece in self.columns), default=0)

    @classmethod
    def stacked(cls, weights: LoraWeights) -> RankRows:
        """The table of adapters that stand side by side; B's tensors are reached relative to A's."""
        a = weights.a
        inner = a.shape[1]
        b_offsets = [
            (piece.b.data_ptr() - a.data_ptr()) // a.element_size() + row * piece.b.shape[1]
            for piece in weights.slices
            for row in range(piece.b.shape[0])
        ]
        bounds = tuple(
            tuple((piece.ranks.start + first, piece.ranks.start + last) for first, last in piece.offsets)
            for piece in weights.slices
        )
        columns = tuple(piece.columns for piece in weights.slices)
        a_offsets = [row * inner for row in range(a.shape[0])]
        sources = tuple(piece.b for piece in weights.slices)
        return cls._of(a, a_offsets, b_offsets, [1.0] * len(a_offsets), bounds, columns, inner, sources)

    @classmethod
    def paged(
        cls,
        pool: torch.Tensor,
        pages: Sequence[Sequence[Pages | None]],
        ranks: Sequence[Sequence[int]],
        columns: Sequence[slice],
        inner: int,
        scales: Sequence[float],
    ) -> RankRows:
        """The table of adapters that lie in pages of a pool; no row straddles two pages.

        Args:
            pool: [pages, page_size], contiguous.
            pages: by slice, then by adapter; None where the adapter leaves the slice alone. A page
                holds page_size // row length rows.
            ranks: by slice, then by adapter.
            columns: each slice's columns of the output.
            inner: columns of the layer's input.
            scales: by adapter.
        """
        if pool.dim() != 2 or not pool.is_contiguous():
            raise ValueError(f"pool has shape {list(pool.shape)}; expected contiguous [pages, page_size]")
        a_offsets: list[int] = []
        b_offsets: list[int] = []
        scale: list[float] = []
        bounds: list[tuple[tuple[int, int], ...]] = []
        for by_adapter, by_rank, piece in zip(pages, ranks, columns, strict=True):
            row: list[tuple[int, int]] = []
            for held, rank, factor in zip(by_adapter, by_rank, scales, strict=True):
                first = len(a_offsets)
                if held is not None and rank:
                    a_offsets += _paged_offsets("A", pool, held[0], rank, inner)
                    b_offsets += _paged_offsets("B", pool, held[1], rank, piece.stop - piece.start)
                    scale += [factor] * rank
                row.append((first, len(a_offsets)))
            bounds.append(tuple(row))
        return cls._of(pool, a_offsets, b_offsets, scale, tuple(bounds), tuple(columns), inner, ())

    @classmethod
    def _of(
        cls,
        memory: torch.Tensor,
        a: Sequence[int],
        b: Sequence[int],
        scale: Sequence[float],
        bounds: Bounds,
        columns: tuple[slice, ...],
        inner: int,
        sources: tuple[torch.Tensor, ...],
    ) -> RankRows:
        places = (*a, *b, *(piece.start for piece in columns))
        aligned = memory.data_ptr() % 16 == 0 and not any(place % ALIGNMENT for place in places)
        table = torch.tensor([a, b], dtype=torch.int64).to(memory.device, non_blocking=True)
        factors = torch.tensor(scale, dtype=torch.float32).to(memory.device, non_blocking=True)
        return cls(memory, table[0], table[1], factors, bounds, columns, inner, aligned, sources)

    def mixed(self, mixes: Sequence[Sequence[tuple[int, float]]]) -> RankRows:
        """Adds one adapter per mix, which applies several adapters with weights to the same row.

        A sum of low-rank products is the low-rank product of their ranks side by side. So a mix is more
        rows of the table that point at its members' weights: nothing is copied, and no two blocks ever
        add to the same output.

        Args:
            mixes: (adapter index, weight) of each member; the new indices follow the present ones.
        """
        rows: list[int] = list(range(self.a.shape[0]))
        weight: list[float] = [1.0] * len(rows)
        bounds: list[tuple[tuple[int, int], ...]] = []
        for by_adapter in self.bounds:
            row = list(by_adapter)
            for mix in mixes:
                first = len(rows)
                for member, factor in mix:
                    picked = range(*by_adapter[member])
                    rows += picked
                    weight += [factor] * len(picked)
                row.append((first, len(rows)))
            bounds.append(tuple(row))
        index = torch.tensor(rows, dtype=torch.int64, device=self.a.device)
        scale = self.scale[index] * torch.tensor(weight, dtype=torch.float32, device=self.a.device)
        return replace(self, a=self.a[index], b=self.b[index], scale=scale, bounds=tuple(bounds))


def _paged_offsets(name: str, pool: torch.Tensor, pages: Sequence[int], rank: int, length: int) -> list[int]:
    size = pool.shape[1]
    per_page = size // length
    if not per_page:
        raise ValueError(f"pool has pages of {size} elements; a row of {name} has {length}")
    if len(pages) * per_page < rank:
        raise ValueError(
            f"pages of {name}: {len(pages)} of {per_page} rows each; rank {rank} needs {-(-rank // per_page)}"
        )
    return [pages[row // per_page] * size + row % per_page * length for row in range(rank)]

"""Where each rank's weights lie in device memory: in tensors of their own, or in pages of a pool.

A rank of an adapter is one row of A and one row of B. The kernels find both through a table of element
offsets, so that weights need neither a common rank nor a common place: loading an adapter writes its
pages and its part of the table, and moves nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from kernels.lora.weights import LoraWeights, RankMatrices
from kernels.transfer import to_device

ALIGNMENT: Final = 8
"""Elements; with 2-byte weights it makes every row start on 16 bytes, what one load instruction takes."""

Bounds = tuple[tuple[tuple[int, int], ...], ...]
"""By slice, then by adapter: (first, last + 1) row of the table; equal where the adapter has no weights.

An adapter's ranks lie side by side, slice by slice: one shrink then serves all its slices, which have the
same x, and a new adapter's ranks follow those that are there.
"""

Pages = tuple[Sequence[int], Sequence[int]]
"""The pages of an adapter's A and B for one slice, in rank order."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LayerShape:
    """All that a plan needs of a layer; one object for all layers alike, so that it is a cheap key."""

    bounds: Bounds
    columns: tuple[tuple[int, int], ...]
    inner: int
    element_size: int

    def same(self, other: LayerShape) -> bool:
        return self is other or all(getattr(self, n) == getattr(other, n) for n in LayerShape.__slots__)


_shared_shape = lru_cache(maxsize=4096)(LayerShape)


@dataclass(frozen=True, slots=True)
class RankRows:
    """The row table of one linear layer over every adapter that is resident.

    Attributes:
        memory: the tensor from whose first element offsets count; gives the weights' dtype.
        a: int64 [ranks], offset of each rank's row of A, which has `inner` elements.
        b: int64 [ranks], offset of each rank's row of B, as long as its slice has columns.
        scale: float32 [ranks], what the rank's product is multiplied with.
        shape: what plans are made for.
        columns: each slice's columns of the output.
        inner: columns of the layer's input.
        aligned: every offset and every slice's first column is a multiple of `ALIGNMENT`, so that rows are
            loaded 16 bytes at a time.
        b_stacked: B's rows of an adapter and slice follow one another: the first offset tells the others.
        sources: tensors that the offsets point into, kept alive.
    """

    memory: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    scale: torch.Tensor
    shape: LayerShape
    columns: tuple[slice, ...]
    inner: int
    aligned: bool
    b_stacked: bool
    sources: tuple[torch.Tensor, ...] = ()

    @property
    def bounds(self) -> Bounds:
        return self.shape.bounds

    @property
    def widest(self) -> int:
        """Last output column that some slice reaches, exclusive."""
        return max((piece.stop for piece in self.columns), default=0)

    @classmethod
    def of(cls, weights: LoraWeights) -> RankRows:
        """The table of a layer's weights, made once."""
        rows = weights.kept.get("rows")
        if not isinstance(rows, RankRows):
            rows = weights.kept["rows"] = cls.stacked(weights)
        return rows

    @classmethod
    def empty(
        cls,
        memory: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        scale: torch.Tensor,
        columns: Sequence[slice],
        inner: int,
        *,
        aligned: bool,
    ) -> RankRows:
        """Tensors that have room for a table of `aligned` rows, and no adapter yet."""
        nobody: Bounds = tuple(() for _ in columns)
        spans = tuple((piece.start, piece.stop) for piece in columns)
        shape = _shared_shape(nobody, spans, inner, memory.element_size())
        return cls(memory, a, b, scale, shape, tuple(columns), inner, aligned, b_stacked=False)

    @classmethod
    def stacked(cls, weights: LoraWeights) -> RankRows:
        """The table of a batch's adapters, read where their tensors lie: nothing is copied."""
        inner, columns = weights.layout.inner, weights.layout.columns
        widths = [piece.stop - piece.start for piece in columns]
        by_adapter = zip(*weights.pairs, strict=True)
        pairs = [(pair, width) for row in by_adapter for pair, width in zip(row, widths, strict=True)]
        live = [(pair, width) for pair, width in pairs if pair is not None and pair.rank]
        held = [(pair.a.contiguous(), pair.b.contiguous()) for pair, _ in live]
        memory = held[0][0]
        start, size = memory.data_ptr(), memory.element_size()
        a = [(matrix.data_ptr() - start) // size for matrix, _ in held]
        b = [(matrix.data_ptr() - start) // size for _, matrix in held]
        ranks = np.array([pair.rank for pair, _ in live], dtype=np.int64)
        ends = np.cumsum([pair.rank if pair else 0 for pair, _ in pairs]).reshape(-1, len(columns)).T.tolist()
        starts = np.cumsum(ranks) - ranks
        within: Ints = np.arange(int(ranks.sum())) - np.repeat(starts, ranks)
        row_of_b = np.repeat(np.array([width for _, width in live], dtype=np.int64), ranks)
        first = [[0, *ends[-1][:-1]], *ends[:-1]]  # a slice begins where the one before it ends
        return cls._of(
            memory,
            np.repeat(np.array(a, dtype=np.int64), ranks) + within * inner,
            np.repeat(np.array(b, dtype=np.int64), ranks) + within * row_of_b,
            np.ones(len(within), dtype=np.float32),
            tuple(tuple(zip(low, high, strict=True)) for low, high in zip(first, ends, strict=True)),
            tuple(columns),
            inner,
            tuple(matrix for both in held for matrix in both),
        )

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
        bounds: list[list[tuple[int, int]]] = [[] for _ in columns]
        for adapter, factor in enumerate(scales):
            for row, by_adapter, by_rank, piece in zip(bounds, pages, ranks, columns, strict=True):
                first, held, rank = len(a_offsets), by_adapter[adapter], by_rank[adapter]
                if held is not None and rank:
                    a_offsets += _paged_offsets("A", pool, held[0], rank, inner)
                    b_offsets += _paged_offsets("B", pool, held[1], rank, piece.stop - piece.start)
                    scale += [factor] * rank
                row.append((first, len(a_offsets)))
        return cls._of(
            pool,
            np.array(a_offsets, dtype=np.int64),
            np.array(b_offsets, dtype=np.int64),
            np.array(scale, dtype=np.float32),
            tuple(map(tuple, bounds)),
            tuple(columns),
            inner,
            (),
        )

    @classmethod
    def placed(
        cls,
        memory: torch.Tensor,
        table: torch.Tensor,
        scale: torch.Tensor,
        bounds: Bounds,
        columns: Sequence[slice],
        inner: int,
        *,
        aligned: bool,
        b_stacked: bool,
    ) -> RankRows:
        """The table of ranks that lie anywhere in `memory`, over tensors that whoever made them keeps.

        Args:
            table: int64 [2, ranks] on the device, offsets of A's rows and of B's, in the order of `bounds`;
                it may be filled later, in the order of the device's work.
            scale: float32 [ranks] on the device.
            aligned: of the offsets; the columns' are seen to here.
        """
        spans = tuple((piece.start, piece.stop) for piece in columns)
        shape = _shared_shape(bounds, spans, inner, memory.element_size())
        aligned = aligned and memory.data_ptr() % 16 == 0
        aligned = aligned and not any(piece.start % ALIGNMENT for piece in columns)
        return cls(memory, table[0], table[1], scale, shape, tuple(columns), inner, aligned, b_stacked)

    def gather(self) -> RankMatrices:
        """A copy of the rows as matrices, side by side as `Layout.of` places them by default."""
        flat = self.memory.view(-1)
        a = _rows_at(flat, self.a, self.inner)
        b = []
        for by_adapter, (start, stop) in zip(self.bounds, self.shape.columns, strict=True):
            held = [self.b[first:last] for first, last in by_adapter if last > first]
            offsets = torch.cat(held) if held else self.b[:0]
            b.append(_rows_at(flat, offsets, stop - start))
        return RankMatrices(a, tuple(b))

    @classmethod
    def _of(
        cls,
        memory: torch.Tensor,
        a: Ints,
        b: Ints,
        scale: npt.NDArray[np.float32],
        bounds: Bounds,
        columns: tuple[slice, ...],
        inner: int,
        sources: tuple[torch.Tensor, ...],
    ) -> RankRows:
        places = (a, b, np.array([piece.start for piece in columns], dtype=np.int64))
        aligned = memory.data_ptr() % 16 == 0 and not any((place % ALIGNMENT).any() for place in places)
        table = to_device(np.stack([a, b]), memory.device)
        factors = to_device(scale, memory.device)
        spans = tuple((piece.start, piece.stop) for piece in columns)  # a slice has no hash before 3.12
        shape = _shared_shape(bounds, spans, inner, memory.element_size())
        b_stacked = _stacked(b, bounds, columns)
        return cls(memory, table[0], table[1], factors, shape, columns, inner, aligned, b_stacked, sources)

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
        bounds = [list(by_adapter) for by_adapter in self.bounds]
        for mix in mixes:
            for row in bounds:
                first = len(rows)
                for member, factor in mix:
                    picked = range(*row[member])
                    rows += picked
                    weight += [factor] * len(picked)
                row.append((first, len(rows)))
        index = torch.tensor(rows, dtype=torch.int64, device=self.a.device)
        scale = self.scale[index] * torch.tensor(weight, dtype=torch.float32, device=self.a.device)
        held = self.shape
        shape = _shared_shape(tuple(map(tuple, bounds)), held.columns, held.inner, held.element_size)
        return replace(self, a=self.a[index], b=self.b[index], scale=scale, shape=shape, b_stacked=False)


def _rows_at(flat: torch.Tensor, offsets: torch.Tensor, length: int) -> torch.Tensor:
    """[offsets, length]: every place of `flat` is seen as the beginning of a row; they overlap."""
    rows = flat.as_strided((max(flat.numel() - length + 1, 0), length), (1, 1), flat.storage_offset())
    return rows.index_select(0, offsets)


def _stacked(b: Ints, bounds: Bounds, columns: tuple[slice, ...]) -> bool:
    spans = np.array(bounds, dtype=np.int64).reshape(len(columns), -1, 2)
    widths = np.array([piece.stop - piece.start for piece in columns], dtype=np.int64)
    first, count = spans[..., 0].reshape(-1), np.diff(spans, axis=-1).reshape(-1)
    order = np.argsort(first, kind="stable")
    row_length = np.repeat(np.repeat(widths, spans.shape[1])[order], count[order])
    begins = np.zeros(len(b), dtype=np.bool_)
    begins[first[count > 0]] = True
    small = count.max(initial=0) * widths.max(initial=0) < 2**31  # kernels count within an adapter in 32 bits
    return bool(small and (begins[1:] | (np.diff(b) == row_length[1:])).all())


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

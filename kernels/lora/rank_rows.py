"""The table of each rank's weights in device memory: in separate tensors, or in pages of a pool.

A rank of an adapter is one row of A and one row of B. The kernels find both through a table of element
offsets, so that weights need neither a common rank nor a common location. Loading an adapter writes its pages
and its part of the table, and moves nothing else.
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
"""In elements; with 2-byte weights every row starts on 16 bytes, the size of one load instruction."""

Bounds = tuple[tuple[tuple[int, int], ...], ...]
"""By slice, then by adapter: (first, last + 1) row of the table; equal where the adapter has no weights.

An adapter's ranks are contiguous, slice by slice. So one shrink serves all its slices, which have the same x,
and a new adapter's ranks are appended.
"""

Pages = tuple[Sequence[int], Sequence[int]]
"""The pages of an adapter's A and B for one slice, in rank order."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LayerShape:
    """The part of a layer that plans depend on; one shared object for equal layers, so that it is a cheap
    key.
    """

    bounds: Bounds
    columns: tuple[tuple[int, int], ...]
    inner: int
    element_size: int

    def same(self, other: LayerShape) -> bool:
        return self is other or all(getattr(self, n) == getattr(other, n) for n in LayerShape.__slots__)


_shared_shape = lru_cache(maxsize=4096)(LayerShape)


@dataclass(frozen=True, slots=True)
class RankRows:
    """The row table of one linear layer for every resident adapter.

    Attributes:
        memory: the tensor whose first element is offset 0; has the weights' dtype.
        a: int64 [ranks], offset of each rank's row of A, which has `inner` elements.
        b: int64 [ranks], offset of each rank's row of B, which has as many elements as its slice has columns.
        scale: float32 [ranks], factor of the rank's product.
        shape: key of plans.
        columns: each slice's columns of the output.
        inner: columns of the layer's input.
        aligned: every offset and every slice's first column is a multiple of `ALIGNMENT`, so that rows are
            loaded 16 bytes at a time.
        b_stacked: B's rows of an adapter and slice are contiguous, so the first offset determines the others.
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
        """Exclusive end of the output columns that the slices cover."""
        return max((piece.stop for piece in self.columns), default=0)

    @classmethod
    def for_weights(cls, weights: LoraWeights) -> RankRows:
        """Return the table of a layer's weights, built once."""
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
        """Return a table without adapters, in tensors that have room for one with `aligned` rows."""
        nobody: Bounds = tuple(() for _ in columns)
        spans = tuple((piece.start, piece.stop) for piece in columns)
        shape = _shared_shape(nobody, spans, inner, memory.element_size())
        return cls(memory, a, b, scale, shape, tuple(columns), inner, aligned, b_stacked=False)

    @classmethod
    def stacked(cls, weights: LoraWeights) -> RankRows:
        """Return the table of a batch's adapters, in place: nothing is copied."""
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
        first = [[0, *ends[-1][:-1]], *ends[:-1]]  # a slice begins where the previous one ends
        return cls._build(
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
        """Return the table of adapters in pages of a pool; no row crosses a page boundary.

        Args:
            pool: [pages, page_size], contiguous.
            pages: by slice, then by adapter; None where the adapter does not change the slice. A page
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
        return cls._build(
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
        """Return a table of ranks anywhere in `memory`, over tensors that the caller keeps alive.

        Args:
            table: int64 [2, ranks] on the device, offsets of the rows of A and of B, in the order of
                `bounds`;
                it may be filled later, in device order.
            scale: float32 [ranks] on the device.
            aligned: True if the offsets are aligned; this function checks the columns.
        """
        spans = tuple((piece.start, piece.stop) for piece in columns)
        shape = _shared_shape(bounds, spans, inner, memory.element_size())
        aligned = aligned and memory.data_ptr() % 16 == 0
        aligned = aligned and not any(piece.start % ALIGNMENT for piece in columns)
        return cls(memory, table[0], table[1], scale, shape, tuple(columns), inner, aligned, b_stacked)

    def gather(self) -> RankMatrices:
        """Return a copy of the rows as matrices, contiguous as in `Layout.build`."""
        flat = self.memory.view(-1)
        a = _rows_at(flat, self.a, self.inner)
        b = []
        for by_adapter, (start, stop) in zip(self.bounds, self.shape.columns, strict=True):
            held = [self.b[first:last] for first, last in by_adapter if last > first]
            offsets = torch.cat(held) if held else self.b[:0]
            b.append(_rows_at(flat, offsets, stop - start))
        return RankMatrices(a, tuple(b))

    @classmethod
    def _build(
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
        """Return the table with one more adapter per mix, which applies several weighted adapters to a row.

        A sum of low-rank products is the low-rank product of the concatenated ranks. So a mix is more table
        rows that point at its members' weights: nothing is copied, and no two blocks add to the same output.

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
    """Return [offsets, length]: the rows of `flat` that begin at each offset; they may overlap."""
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

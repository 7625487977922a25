"""The flat list of what the blocks have to do, written on the host from the batch's rows and ranks.

Each entry is sixteen int32. A block reads its entry and knows its rows, ranks, columns and place in the
shrunk activations; no block is launched that finds nothing to do, and none searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kernels.lora.rank_rows import Bounds
from kernels.lora.tile import Tile

Ints = npt.NDArray[np.int64]

FIELDS: Final = 16
"""row_first, row_count, rank_first, rank_count, base, stride, split | split_stride, column_first,
column_count, flag, target, adapter, column_in_slice, three unused: 64 bytes, two memory sectors. The
order is part of the kernels."""

BLOCKS_WANTED: Final = 512
"""The shrink is split until it has so many blocks: about four on each of 132 multiprocessors."""


@dataclass(frozen=True, slots=True)
class Worklist:
    """Entries of one launch (or two: shrink and expand) over the segments of a batch.

    Attributes:
        items: int32 [shrinks + expands, FIELDS]; shrinks first.
        shrinks: how many entries shrink.
        splits: parts into which the input columns are cut, each a whole number of `tile.inner`.
        inner_blocks: steps of `tile.inner` in one part.
        shrunk: float32 elements that the shrunk activations take; a part's are its own unless `atomic`.
        flags: counters that the fused kernel needs, one per product and row chunk.
    """

    items: npt.NDArray[np.int32]
    shrinks: int
    splits: int
    inner_blocks: int
    shrunk: int
    flags: int


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Rows in the order of their adapters.

    Attributes:
        rows: row numbers, those of one adapter next to each other; rows without adapter are left out.
        adapter, first, count: by segment; `first` counts in `rows`.
    """

    rows: Ints
    adapter: Ints
    first: Ints
    count: Ints

    @classmethod
    def of(cls, row_adapter: Sequence[int]) -> RowGroups:
        adapters = np.asarray(row_adapter, dtype=np.int64).reshape(-1)
        order = np.argsort(adapters, kind="stable")
        order = order[adapters[order] >= 0]
        adapter, first, count = np.unique(adapters[order], return_index=True, return_counts=True)
        return cls(order, adapter, first, count)

    def where(self, chosen: npt.NDArray[np.bool_]) -> RowGroups:
        """Some of the segments; `rows` stays whole, so that `first` keeps its meaning."""
        return RowGroups(self.rows, self.adapter[chosen], self.first[chosen], self.count[chosen])


def build(
    groups: RowGroups, bounds: Bounds, columns: Sequence[slice], inner: int, tile: Tile, *, atomic: bool
) -> Worklist:
    """Cuts the products of every segment and slice into entries.

    Args:
        bounds: rows of the layer's row table by slice, then adapter.
        atomic: parts of a split product add to one place instead of each having its own.
    """
    product = _products(groups, bounds, columns)
    row_chunks = -(-product["rows"] // tile.rows)
    rank_chunks = -(-product["rank"] // tile.ranks)
    splits, inner_blocks = _splits(int((row_chunks * rank_chunks).sum()), inner, tile)
    places = 1 if atomic else splits
    product["base"] = _starts(product["rows"] * product["rank"] * places)
    product["flag"] = _starts(row_chunks)
    shrunk = int((product["rows"] * product["rank"] * places).sum())
    if shrunk >= 2**31:
        raise ValueError(f"row_adapter needs {shrunk} shrunk values; expected fewer than 2^31 in one batch")
    shrink = _shrink_items(product, row_chunks, rank_chunks, splits, tile, atomic)
    expand = _expand_items(product, row_chunks, rank_chunks * splits, tile)
    items = np.concatenate([shrink, expand]).astype(np.int32)
    return Worklist(items, len(shrink), splits, inner_blocks, shrunk, int(row_chunks.sum()))


def _products(groups: RowGroups, bounds: Bounds, columns: Sequence[slice]) -> dict[str, Ints]:
    """One entry per (segment, slice) whose adapter has weights there."""
    table = np.asarray(bounds, dtype=np.int64).reshape(len(columns), -1, 2)
    if groups.adapter.size and groups.adapter.max() >= table.shape[1]:
        raise ValueError(f"row_adapter names adapter {groups.adapter.max()}; there are {table.shape[1]}")
    segment, piece = (index.reshape(-1) for index in np.indices((len(groups.adapter), len(columns))))
    adapter = groups.adapter[segment]
    first, last = table[piece, adapter].T if len(adapter) else np.empty((2, 0), dtype=np.int64)
    live = last > first
    starts = np.array([c.start for c in columns], dtype=np.int64)
    widths = np.array([c.stop - c.start for c in columns], dtype=np.int64)
    whole = {
        "adapter": adapter,
        "piece": piece,
        "row": groups.first[segment],
        "rows": groups.count[segment],
        "rank_row": first,
        "rank": last - first,
        "column": starts[piece],
        "width": widths[piece],
    }
    return {name: values[live] for name, values in whole.items()}


def _splits(blocks: int, inner: int, tile: Tile) -> tuple[int, int]:
    steps = -(-inner // tile.inner)
    wanted = min(tile.splits, steps, -(-BLOCKS_WANTED // max(blocks, 1)))
    per_split = -(-steps // (1 << (wanted.bit_length() - 1)))
    return -(-steps // per_split), per_split


def _starts(sizes: Ints) -> Ints:
    return np.cumsum(sizes) - sizes


def _repeat(counts: Ints) -> tuple[Ints, Ints]:
    """For each of sum(counts) entries: which count it belongs to, and its number within it."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - _starts(counts)[owner]


def _shrink_items(
    product: dict[str, Ints], row_chunks: Ints, rank_chunks: Ints, splits: int, tile: Tile, atomic: bool
) -> Ints:
    owner, number = _repeat(row_chunks * rank_chunks * splits)
    split, rest = np.divmod(number, (row_chunks * rank_chunks)[owner])
    row_chunk, rank_chunk = np.divmod(rest, rank_chunks[owner])
    p = {name: values[owner] for name, values in product.items()}
    row, rank = row_chunk * tile.rows, rank_chunk * tile.ranks
    base = p["base"] + row * p["rank"] + rank
    if not atomic:
        base += split * p["rows"] * p["rank"]
    items = np.zeros((len(owner), FIELDS), dtype=np.int64)
    items[:, 0] = p["row"] + row
    items[:, 1] = np.minimum(p["rows"] - row, tile.rows)
    items[:, 2] = p["rank_row"] + rank
    items[:, 3] = np.minimum(p["rank"] - rank, tile.ranks)
    items[:, 4] = base
    items[:, 5] = p["rank"]
    items[:, 6] = split
    items[:, 9] = p["flag"] + row_chunk
    # Neighbours in this order share x (slices, rank chunks) or A (row chunks): they hit the L2 cache.
    order = np.lexsort((rank_chunk, p["piece"], row_chunk, split, p["adapter"]))
    return items[order]


def _expand_items(product: dict[str, Ints], row_chunks: Ints, targets: Ints, tile: Tile) -> Ints:
    blocks = -(-product["width"] // tile.outer)
    owner, number = _repeat(row_chunks * blocks)
    row_chunk, block = np.divmod(number, blocks[owner])
    p = {name: values[owner] for name, values in product.items()}
    row, column = row_chunk * tile.rows, block * tile.outer
    items = np.zeros((len(owner), FIELDS), dtype=np.int64)
    items[:, 0] = p["row"] + row
    items[:, 1] = np.minimum(p["rows"] - row, tile.rows)
    items[:, 2] = p["rank_row"]
    items[:, 3] = p["rank"]
    items[:, 4] = p["base"] + row * p["rank"]
    items[:, 5] = p["rank"]
    items[:, 6] = p["rows"] * p["rank"]
    items[:, 7] = p["column"] + column
    items[:, 8] = np.minimum(p["width"] - column, tile.outer)
    items[:, 9] = p["flag"] + row_chunk
    items[:, 10] = targets[owner]
    items[:, 11] = p["adapter"]
    items[:, 12] = column
    # A group of row chunks reads the same columns of B one after another.
    order = np.lexsort((row_chunk % tile.group, block, p["piece"], row_chunk // tile.group, p["adapter"]))
    return items[order]

"""The flat list of work items for the blocks, built on the host from the batch's rows and ranks.

Each entry is sixteen int32: the block's rows, ranks, columns and offset in the shrunk activations. Every
launched block has work, and none searches for it.
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
"""row_first, row_count, rank_first, rank_count, base, stride, split | split_stride, flag, column_count,
column_first, target, adapter, column_in_slice, length of B's rows, two unused: 64 bytes, two memory sectors.
A shrink reads the first sector only. The kernels depend on this order.
"""


@dataclass(frozen=True, slots=True)
class Worklist:
    """Entries of one launch (or two: shrink and expand) over the segments of a batch.

    Attributes:
        items: int32 [shrinks + expands, FIELDS]; shrinks first.
        shrinks: number of shrink entries.
        splits: parts into which the input columns are cut, each a whole number of `tile.inner`.
        inner_blocks: steps of `tile.inner` in one part.
        shrunk: float32 elements of the shrunk activations; each part has its own unless `atomic`.
        flags: counters that the fused kernel needs, one per segment and row chunk.
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
        rows: row numbers sorted by adapter; rows without adapter are left out.
        adapter, first, count: by segment; `first` is an index into `rows`.
    """

    rows: Ints
    adapter: Ints
    first: Ints
    count: Ints

    @classmethod
    def group(cls, row_adapter: Sequence[int]) -> RowGroups:
        adapters = np.asarray(row_adapter, dtype=np.int64).reshape(-1)
        order = np.argsort(adapters, kind="stable")
        order = order[adapters[order] >= 0]
        adapter, first, count = np.unique(adapters[order], return_index=True, return_counts=True)
        return cls(order, adapter, first, count)

    def where(self, chosen: npt.NDArray[np.bool_]) -> RowGroups:
        """Return some of the segments; `rows` stays whole, so that `first` stays valid."""
        return RowGroups(self.rows, self.adapter[chosen], self.first[chosen], self.count[chosen])


def build(
    groups: RowGroups, bounds: Bounds, columns: Sequence[slice], inner: int, tile: Tile, *, atomic: bool
) -> Worklist:
    """Cut the products of every segment into entries.

    The shrink covers all slices at once, since they have the same x; the expand goes slice by slice.

    Args:
        bounds: rows of the layer's row table by slice, then adapter.
        atomic: parts of a split product add to one place instead of each having its own.

    Raises:
        ValueError: an adapter that the table lacks or whose ranks are not contiguous in it, or a
            batch whose offsets need more than 31 bits.
    """
    table = np.asarray(bounds, dtype=np.int64).reshape(len(columns), -1, 2)
    shrink = _shrink_products(groups, table)
    row_chunks = -(-shrink["rows"] // tile.rows)
    rank_chunks = -(-shrink["rank"] // tile.ranks)
    splits, inner_blocks = _splits(int((row_chunks * rank_chunks).sum()), inner, tile)
    sizes = shrink["rows"] * shrink["rank"] * (1 if atomic else splits)
    shrink |= {"base": _starts(sizes), "flag": _starts(row_chunks)}
    shrink |= {"row_chunks": row_chunks, "rank_chunks": rank_chunks, "target": rank_chunks * splits}
    expand = _expand_products(shrink, table, columns, tile)
    shrinks, expands = int(shrink["target"] @ row_chunks), int(expand["blocks"] @ expand["row_chunks"])
    if max(int(sizes.sum()), FIELDS * (shrinks + expands)) >= 2**31:
        raise ValueError(
            f"row_adapter needs {sizes.sum()} shrunk values and {shrinks + expands} entries of {FIELDS}; "
            "expected fewer than 2^31 of each in one batch"
        )
    items = np.concatenate([_shrink_items(shrink, splits, tile, atomic=atomic), _expand_items(expand, tile)])
    return Worklist(
        items.astype(np.int32), shrinks, splits, inner_blocks, int(sizes.sum()), int(row_chunks.sum())
    )


def _shrink_products(groups: RowGroups, table: Ints) -> dict[str, Ints]:
    """Return one entry per segment whose adapter has weights in some slice."""
    if groups.adapter.size and groups.adapter.max() >= table.shape[1]:
        raise ValueError(f"row_adapter names adapter {groups.adapter.max()}; there are {table.shape[1]}")
    used = table[:, groups.adapter]
    if (used[1:, :, 0] != used[:-1, :, 1]).any():
        raise ValueError(
            "bounds separate an adapter's slices; expected its ranks side by side, slice by slice"
        )
    first, last = used[0, :, 0], used[-1, :, 1]
    whole = {
        "adapter": groups.adapter,
        "row": groups.first,
        "rows": groups.count,
        "rank_row": first,
        "rank": last - first,
    }
    return {name: values[last > first] for name, values in whole.items()}


def _expand_products(
    shrink: dict[str, Ints], table: Ints, columns: Sequence[slice], tile: Tile
) -> dict[str, Ints]:
    """Return one entry per (segment, slice) whose adapter has weights there."""
    segment, piece = (index.reshape(-1) for index in np.indices((len(shrink["row"]), len(columns))))
    first, last = np.moveaxis(table[piece, shrink["adapter"][segment]], -1, 0)
    starts = np.array([c.start for c in columns], dtype=np.int64)
    widths = np.array([c.stop - c.start for c in columns], dtype=np.int64)
    whole = {name: values[segment] for name, values in shrink.items()} | {
        "piece": piece,
        "stride": shrink["rank"][segment],
        "rank_row": first,
        "rank": last - first,
        "column": starts[piece],
        "width": widths[piece],
        "blocks": -(-widths[piece] // tile.outer),
    }
    whole["base"] = whole["base"] + first - shrink["rank_row"][segment]
    return {name: values[last > first] for name, values in whole.items()}


def _splits(blocks: int, inner: int, tile: Tile) -> tuple[int, int]:
    """Return (parts, steps per part), with enough parts for `tile.blocks` blocks where the steps suffice."""
    steps = -(-inner // tile.inner)
    wanted = min(tile.splits, steps, -(-tile.blocks // max(blocks, 1)))
    per_split = -(-steps // (1 << (wanted.bit_length() - 1)))
    return -(-steps // per_split), per_split


def _starts(sizes: Ints) -> Ints:
    return np.cumsum(sizes) - sizes


def _repeat(counts: Ints) -> tuple[Ints, Ints]:
    """Return, for each of sum(counts) entries, the index of its count and its number within it."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - _starts(counts)[owner]


def _shrink_items(product: dict[str, Ints], splits: int, tile: Tile, *, atomic: bool) -> Ints:
    blocks = product["row_chunks"] * product["rank_chunks"]
    owner, number = _repeat(blocks * splits)
    split, rest = np.divmod(number, blocks[owner])
    row_chunk, rank_chunk = np.divmod(rest, product["rank_chunks"][owner])
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
    items[:, 7] = p["flag"] + row_chunk
    # Neighbors in this order share x (rank chunks) or A (row chunks), which hit the L2 cache.
    order = np.lexsort((rank_chunk, row_chunk, split, p["adapter"]))
    return items[order]


def _expand_items(product: dict[str, Ints], tile: Tile) -> Ints:
    owner, number = _repeat(product["row_chunks"] * product["blocks"])
    row_chunk, block = np.divmod(number, product["blocks"][owner])
    p = {name: values[owner] for name, values in product.items()}
    row, column = row_chunk * tile.rows, block * tile.outer
    items = np.zeros((len(owner), FIELDS), dtype=np.int64)
    items[:, 0] = p["row"] + row
    items[:, 1] = np.minimum(p["rows"] - row, tile.rows)
    items[:, 2] = p["rank_row"]
    items[:, 3] = p["rank"]
    items[:, 4] = p["base"] + row * p["stride"]
    items[:, 5] = p["stride"]
    items[:, 6] = p["rows"] * p["stride"]
    items[:, 7] = p["flag"] + row_chunk
    items[:, 8] = np.minimum(p["width"] - column, tile.outer)
    items[:, 9] = p["column"] + column
    items[:, 10] = p["target"]
    items[:, 11] = p["adapter"]
    items[:, 12] = column
    items[:, 13] = p["width"]
    # A group of row chunks reads the same columns of B consecutively.
    order = np.lexsort((row_chunk % tile.group, block, p["piece"], row_chunk // tile.group, p["adapter"]))
    return items[order]

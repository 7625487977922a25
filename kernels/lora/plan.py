"""A batch's worklists on the device: built once per change of the batch, read by every layer.

Worklists are built on the host and copied without waiting for the device. A plan with fixed capacity keeps
its tensors, so that a captured graph reads the latest `load`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from kernels.lora.rank_rows import ALIGNMENT, LayerShape, RankRows
from kernels.lora.tile import Tile
from kernels.lora.tuned_tiles import kind, tuned_tiles
from kernels.lora.worklist import FIELDS, RowGroups, Worklist, build


@dataclass(slots=True)
class Part:
    """The segments of a batch that use one tile, and the data for their launches.

    Attributes:
        tile: sizes of the blocks.
        atomic: parts of a split product are added in place; `shrunk` is then cleared before each launch.
        even_outer: no block reaches past its slice's last column.
        items: int32 [capacity, FIELDS], see worklist.py.
        row_index: int32 [capacity], rows in adapter order.
        shrunk: float32 [capacity].
        counts: int32 [5], read by `fused_kernel`.
        flags: int32 [2 + capacity], zero between launches.
        shrinks, expands, splits, inner_blocks: the same counts on the host.
    """

    tile: Tile
    atomic: bool
    even_outer: bool
    items: torch.Tensor
    row_index: torch.Tensor
    shrunk: torch.Tensor
    counts: torch.Tensor
    flags: torch.Tensor
    shrinks: int = 0
    expands: int = 0
    splits: int = 1
    inner_blocks: int = 1

    def load(self, work: Worklist, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Load a worklist.

        Raises:
            ValueError: it does not fit; nothing was changed.
        """
        needs = (("items", len(work.items)), ("row_index", len(rows)), ("shrunk", work.shrunk))
        for name, size in (*needs, ("flags", work.flags + 2)):
            held = getattr(self, name).shape[0]
            if size > held:
                raise ValueError(f"{name} has capacity {held}; this batch needs {size}")
        _copy(self.items, work.items)
        _copy(self.row_index, rows.astype(np.int32))
        self.shrinks, self.expands = work.shrinks, len(work.items) - work.shrinks
        self.splits, self.inner_blocks = work.splits, work.inner_blocks
        numbers = [work.shrinks, len(work.items), work.splits, work.inner_blocks, work.flags]
        _copy(self.counts, np.array(numbers, dtype=np.int32))


def _copy(target: torch.Tensor, source: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> None:
    host = torch.from_numpy(source)
    if target.is_cuda:
        # Copies are asynchronous only from pinned memory; the allocator keeps it until the copy is done.
        host = host.pin_memory()
    target[: len(source)].copy_(host, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of a plan whose tensors keep their addresses.

    Attributes:
        rows: rows of the batch.
        items: entries, shrinks and expands together.
        shrunk: float32 values: sum over rows of ranks, times splits.
    """

    rows: int
    items: int
    shrunk: int

    def __post_init__(self) -> None:
        for name in ("rows", "items", "shrunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")

    @classmethod
    def for_rows(cls, columns: Sequence[slice], inner: int, tile: Tile, *, rows: int, ranks: int) -> Self:
        """Return the capacity for any batch of `rows` rows, each with its own adapter of at most `ranks`
        ranks.

        Args:
            ranks: sum over all slices.
        """
        splits = min(tile.splits, -(-inner // tile.inner))
        expands = sum(-(-(piece.stop - piece.start) // tile.outer) for piece in columns)
        shrinks = -(-ranks // tile.ranks) * splits
        return cls(rows, rows * (shrinks + expands), rows * ranks * splits)


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches for one batch and one shape of layer.

    Attributes:
        parts: by kind of segment; empty if no row has an adapter.
        rows: rows of the batch, with adapter or without.
        shape: of the layers that it serves.
    """

    parts: tuple[Part, ...]
    rows: int
    shape: LayerShape

    @classmethod
    def build(
        cls,
        row_adapter: Sequence[int],
        rows: RankRows,
        *,
        deterministic: bool = True,
        choose: Callable[[int, int], Tile] | None = None,
        embedding: bool = False,
    ) -> Self:
        """Plan a batch: segments of one row, of few and of many rows use different kinds of blocks.

        Args:
            row_adapter: adapter index of each row, -1 for none.
            deterministic: parts of a split product are summed in a fixed order; else by atomics.
            choose: returns the tile for a segment size (the mean over the kind) and the weights' bytes per
                element; by default the tuned one, see `tuned_tiles.py`.
            embedding: the shrink looks up columns of A, so that there is nothing to split.
        Raises:
            ValueError: an adapter that the table lacks, more than 2^31 places, a malformed tuned file.
        """
        groups = RowGroups.group(row_adapter)
        size = rows.memory.element_size()
        choose = choose or tuned_tiles(rows, len(groups.count))
        parts: list[Part] = []
        kinds = np.array([kind(int(count)) for count in groups.count])
        for present in np.unique(kinds):
            chosen = groups.where(kinds == present)
            tile = choose(round(float(chosen.count.mean())), size)
            if embedding:
                tile = replace(tile, splits=1, fused=False)
            work = build(chosen, rows.bounds, rows.columns, rows.inner, tile, atomic=not deterministic)
            if len(work.items):
                room = Capacity(len(groups.rows), len(work.items), work.shrunk)
                part = _part(tile, rows, room, work.flags, atomic=not deterministic)
                part.load(work, groups.rows)
                parts.append(part)
        return cls(tuple(parts), len(row_adapter), rows.shape)


class GraphPlan:
    """A plan with fixed tensors for captured graphs; one per layer shape, or per layer where they differ."""

    def __init__(self, rows: RankRows, tile: Tile, capacity: Capacity) -> None:
        """Allocate the tensors; the batch is empty until `load`."""
        self.part = _part(tile, rows, capacity, capacity.items, atomic=False)
        self._columns, self._inner = rows.columns, rows.inner
        self._most_rows, self._aligned = capacity.rows, False
        self.rows = 0
        self.load([], rows)

    def load(self, row_adapter: Sequence[int], rows: RankRows) -> None:
        """Load a batch; graphs captured earlier replay it.

        Args:
            row_adapter: adapter index of each row, -1 for none; at most as many rows as the smallest captured
                input.
            rows: the current row table; its adapters may have changed since the capture, but its tensors must
                be
                those of the capture.

        Raises:
            ValueError: the batch does not fit; the previous one stays.
        """
        if len(row_adapter) > self._most_rows:
            raise ValueError(
                f"row_adapter has {len(row_adapter)} rows; a graph of this plan was captured with room for "
                f"{self._most_rows}"
            )
        if self._aligned and not rows.aligned:
            raise ValueError(
                f"rows of a layer of {rows.inner} columns are not aligned to {ALIGNMENT} elements; a graph "
                "of this plan was captured with a table that is"
            )
        groups = RowGroups.group(row_adapter)
        work = build(groups, rows.bounds, self._columns, self._inner, self.part.tile, atomic=False)
        self.part.load(work, groups.rows)
        self.rows = len(row_adapter)

    def captured(self, input_rows: int, *, aligned: bool) -> None:
        """Record the specialization of a captured launch, which later loads must satisfy."""
        self._most_rows = min(self._most_rows, input_rows)
        self._aligned = self._aligned or aligned


def _part(tile: Tile, rows: RankRows, room: Capacity, flags: int, *, atomic: bool) -> Part:
    device = rows.memory.device
    return Part(
        tile,
        atomic,
        not any((piece.stop - piece.start) % tile.outer for piece in rows.columns),
        torch.empty((room.items, FIELDS), dtype=torch.int32, device=device),
        torch.empty(max(room.rows, 1), dtype=torch.int32, device=device),
        torch.empty(room.shrunk, dtype=torch.float32, device=device),
        torch.zeros(5, dtype=torch.int32, device=device),
        torch.zeros(2 + flags, dtype=torch.int32, device=device),
    )

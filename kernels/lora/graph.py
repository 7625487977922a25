"""Multi-LoRA of captured decode steps: tables and worklists with fixed addresses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from kernels import selection
from kernels.lora import cpu
from kernels.lora.plan import Capacity, GraphPlan
from kernels.lora.rank_rows import ALIGNMENT, RankRows
from kernels.lora.segments import Segments
from kernels.lora.tile import Tile
from kernels.lora.tuned_tiles import tuned_tiles
from kernels.lora.weights import LoraWeights
from kernels.transfer import to_device

MAX_RANK: Final = 64
"""Mean rank per slice for which tables have room, over all adapters that a batch may have."""

Layers = Sequence[Mapping[str, LoraWeights | None]]
"""By decoder layer, then by the linear layer's name."""


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear layer: columns of its input, and of each slice of its output."""

    inner: int
    widths: tuple[int, ...]

    @property
    def columns(self) -> tuple[slice, ...]:
        ends = np.cumsum(self.widths).tolist()
        return tuple(slice(end - width, end) for end, width in zip(ends, self.widths, strict=True))

    @property
    def aligned(self) -> bool:
        """True if its tables can be aligned, see `RankRows`."""
        return not any(size % ALIGNMENT for size in (self.inner, *self.widths))


class GraphTables:
    """The row tables of every linear layer of a model, at fixed addresses.

    Layers of one name share worklists, so an adapter must have the same ranks in all of them.

    Attributes:
        version: number of loads.
    """

    def __init__(
        self,
        shapes: Mapping[str, LinearShape],
        num_layers: int,
        *,
        adapters: int,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate room for `adapters` adapters of rank `rank` in every slice."""
        self.shapes, self.num_layers, self.rank = dict(shapes), num_layers, rank
        self._room = {name: adapters * rank * len(shape.widths) for name, shape in shapes.items()}
        total = num_layers * sum(self._room.values())
        # Offsets count from here; the weights may be anywhere on the device.
        self._anchor = torch.zeros(ALIGNMENT, dtype=dtype, device=device)
        self._table = torch.zeros((2, total), dtype=torch.int64, device=device)
        self._scale = torch.zeros(total, dtype=torch.float32, device=device)
        places = [(layer, name) for layer in range(num_layers) for name in shapes]
        ends = np.cumsum([self._room[name] for _, name in places]).tolist()
        self._first = {key: end - self._room[key[1]] for key, end in zip(places, ends, strict=True)}
        self._rows = {name: self._empty_rows(0, name) for name in shapes}
        self.weights: Layers = [dict.fromkeys(shapes) for _ in range(num_layers)]
        self.version = 0

    @staticmethod
    def bytes_for(slices: Sequence[int], num_layers: int, *, adapters: int, rank: int = MAX_RANK) -> int:
        """Return the device bytes of the tables. `slices`: number of slices of each linear layer."""
        return num_layers * adapters * rank * sum(slices) * (2 * 8 + 4)

    def rows(self, layer: int, name: str) -> RankRows:
        """Return the layer's table: tensors at fixed addresses, with the bounds of the last load."""
        now, fixed = self._rows[name], self._empty_rows(layer, name)
        return replace(now, a=fixed.a, b=fixed.b, scale=fixed.scale)

    def changes(self, name: str, adapters: Collection[int]) -> bool:
        """Return True if any of the loaded `adapters`, given by index, changes the layers of this name."""
        # All layers of a name have the same ranks.
        held = self.weights[0].get(name)
        return held is not None and any(ranks[adapter] for ranks in held.layout.ranks for adapter in adapters)

    def load(self, weights: Layers) -> None:
        """Load a batch's adapters.

        Raises:
            ValueError: more ranks than there is room for, or ranks that differ among layers of a name; the
                previous batch stays.
        """
        for name in self.shapes:
            self._check(name, [by_name.get(name) for by_name in weights])
        if selection.runs("lora_graph", self._anchor):
            self._take(weights)
        self.weights, self.version = weights, self.version + 1

    def _check(self, name: str, layers: Sequence[LoraWeights | None]) -> None:
        ranks = {None if held is None else held.layout.ranks for held in layers}
        if len(ranks) > 1:
            raise ValueError(f"ranks of {name} differ among layers; captured steps want the same in each")
        needed = sum(map(sum, ranks.pop() or ()))
        if needed > self._room[name]:
            raise ValueError(f"adapters have {needed} ranks of {name}; there is room for {self._room[name]}")

    def _take(self, weights: Layers) -> None:
        found = [
            (layer, name, RankRows.for_weights(held))
            for layer, by_name in enumerate(weights)
            for name, held in by_name.items()
            if held is not None
        ]
        self._write(found)
        for name in self.shapes:
            own = [rows for _, other, rows in found if other == name]
            self._rows[name] = self._shared(name, own) if own else self._empty_rows(0, name)

    def _shared(self, name: str, own: Sequence[RankRows]) -> RankRows:
        """Return the properties shared by the tables of all layers of a name."""
        aligned = all(rows.aligned and not self._shift(rows) % ALIGNMENT for rows in own)
        aligned = aligned and self.shapes[name].aligned
        return replace(own[0], memory=self._anchor, aligned=aligned, b_stacked=False, sources=())

    def _write(self, found: Sequence[tuple[int, str, RankRows]]) -> None:
        """Write all layers' tables in a few device operations."""
        if not found:
            return
        counts = np.array([len(rows.a) for _, _, rows in found])
        firsts = np.array([self._first[layer, name] for layer, name, _ in found])
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        shifts = np.repeat([self._shift(rows) for _, _, rows in found], counts)
        device = self._anchor.device
        index = to_device(np.repeat(firsts, counts) + within, device)
        offsets = torch.stack([torch.cat([getattr(rows, side) for *_, rows in found]) for side in "ab"])
        self._table.index_copy_(1, index, offsets + to_device(shifts, device))
        self._scale.index_copy_(0, index, torch.cat([rows.scale for *_, rows in found]))

    def _shift(self, rows: RankRows) -> int:
        """Return the distance, in elements, from the anchor to the start of the rows' own offsets."""
        return (rows.memory.data_ptr() - self._anchor.data_ptr()) // self._anchor.element_size()

    def _empty_rows(self, layer: int, name: str) -> RankRows:
        """Return the layer's tensors as a table without adapters."""
        first, shape = self._first[layer, name], self.shapes[name]
        part = slice(first, first + self._room[name])
        a, b = self._table[:, part]
        return RankRows.empty(
            self._anchor, a, b, self._scale[part], shape.columns, shape.inner, aligned=shape.aligned
        )


class GraphLora:
    """LoRA inputs of the linear layers of one captured step with `rows` rows."""

    def __init__(self, tables: GraphTables, rows: int) -> None:
        self._tables, self._num_rows = tables, rows
        self._plans: dict[str, GraphPlan] = {}
        self._loaded: tuple[list[int], int] | None = None
        self._segments = Segments.group([-1] * rows, tables.rows(0, next(iter(tables.shapes))).memory.device)

    def load(self, row_adapter: list[int]) -> None:
        """Load a batch's rows; the tables must hold its adapters.

        Args:
            row_adapter: adapter index of each row, -1 for none; as many rows as at capture.

        Raises:
            ValueError: a batch of another size, or adapters that the captured launches cannot process; some
                layers may have been loaded.
        """
        if len(row_adapter) != self._num_rows:
            raise ValueError(f"row_adapter has {len(row_adapter)} rows; expected {self._num_rows}")
        if self._loaded == (row_adapter, self._tables.version):
            return
        self._loaded = None
        for name, plan in self._plans.items():
            rows = self._tables.rows(0, name)
            plan.load(row_adapter if any(rows.bounds) else [-1] * self._num_rows, rows)
        self._segments = Segments.group(row_adapter, self._segments.row_adapter.device)
        self._loaded = (list(row_adapter), self._tables.version)

    def apply(self, layer: int, name: str, out: torch.Tensor, x: torch.Tensor) -> None:
        """Add to `out` the LoRA output of the batch loaded when this runs, directly or in a replay."""
        if not selection.runs("lora_graph", out):
            weights = self._tables.weights[layer].get(name)
            if weights is not None and not self._segments.empty:
                cpu.apply_lora(out, x, weights, self._segments)
            return
        from kernels.lora import gpu

        rows = self._tables.rows(layer, name)
        gpu.run_graph(out, x, rows, self._plan(name, rows))

    def _plan(self, name: str, rows: RankRows) -> GraphPlan:
        if name not in self._plans:
            tile: Tile = tuned_tiles(rows, self._num_rows)(1, rows.memory.element_size())
            ranks = self._tables.rank * len(rows.columns)
            room = Capacity.for_rows(rows.columns, rows.inner, tile, rows=self._num_rows, ranks=ranks)
            self._plans[name] = GraphPlan(rows, tile, room)
        return self._plans[name]


@dataclass(frozen=True, slots=True)
class CapturedLora:
    """One linear layer's part of a captured step."""

    lora: GraphLora
    layer: int
    name: str

    def apply(self, out: torch.Tensor, x: torch.Tensor) -> None:
        self.lora.apply(self.layer, self.name, out, x)

"""Measures the tiles of multi-LoRA for `python -m kernels.tune`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from kernels.lora import LoraPair, LoraWeights, Owners, concatenate, gpu
from kernels.lora.plan import Plan
from kernels.lora.rank_rows import RankRows
from kernels.lora.tile import Tile, tile_for
from kernels.lora.tuned_tiles import LEVELS, kind
from kernels.tuned import Shape

LAYERS: Final = {
    (4096, 6144): (4096, 1024, 1024),
    (4096, 4096): (4096,),
    (4096, 28672): (14336, 14336),
    (14336, 4096): (4096,),
    (8192, 10240): (8192, 1024, 1024),
    (8192, 8192): (8192,),
    (8192, 57344): (28672, 28672),
    (28672, 8192): (8192,),
}
"""(inner, outer): widths of the slices, for Llama-3.1 8B and 70B: q/k/v, o, gate/up, down."""

BATCHES: Final = ((1, 64), (1, 256), (1, 8), (1, 1), (8, 8), (4, 64), (64, 1), (512, 1), (4096, 1), (128, 8))
"""(rows per segment, active adapters), most important first."""

ONE_ROW: Final[Mapping[str, Sequence[object]]] = {
    "fused": (False, True),
    "splits": (1, 2, 4, 8, 16, 32),
    "inner": (128, 256, 512, 1024),
    "outer": (128, 256, 512, 1024),
    "warps": (1, 2, 4, 8),
    "blocks": (128, 256, 512, 1024),
    "ranks": (8, 16, 32),
    "depth": (8, 16, 32),
}
FEW_ROWS: Final[Mapping[str, Sequence[object]]] = {
    "fused": (False, True),
    "splits": (1, 2, 4, 8, 16, 32),
    "outer": (64, 128, 256, 512),
    "inner": (64, 128, 256),
    "warps": (2, 4, 8),
    "stages": (2, 3, 4, 5),
    "blocks": (128, 256, 512, 1024),
    "ranks": (16, 32, 64),
    "depth": (16, 32, 64),
}
MANY_ROWS: Final[Mapping[str, Sequence[object]]] = {
    "rows": (32, 64, 128),
    "outer": (64, 128, 256),
    "ranks": (16, 32, 64, 128),
    "splits": (1, 2, 4, 8, 16),
    "warps": (4, 8),
    "inner": (32, 64, 128),
    "stages": (2, 3, 4, 5),
    "depth": (16, 32, 64),
    "blocks": (128, 256, 512),
    "group": (1, 4, 8, 16),
}
AXES: Final = (ONE_ROW, FEW_ROWS, MANY_ROWS)
"""By kind of segment."""
THREAD_ELEMENTS: Final = 128
"""Elements of a tile that a thread may hold: 64 registers of 2-byte weights, 128 of products. More would
spill.
"""


@dataclass(frozen=True, slots=True)
class LoraTrial:
    """Batches of one shape on different weights; their rows, ranks and plan are equal."""

    row_adapter: tuple[int, ...]
    tables: tuple[RankRows, ...]
    x: tuple[torch.Tensor, ...]
    out: tuple[torch.Tensor, ...]
    delta: torch.Tensor
    """The output added by the first set's adapters, from products in float32 (float64 on the CPU)."""

    @property
    def sets(self) -> int:
        return len(self.tables)

    def calls(self, config: Tile) -> Sequence[Callable[[], None]]:
        plan = Plan.build(self.row_adapter, self.tables[0], choose=lambda *_: config)

        def call(out: torch.Tensor, x: torch.Tensor, rows: RankRows) -> Callable[[], None]:
            return lambda: gpu.run(out, x, rows, plan)

        return [call(*one) for one in zip(self.out, self.x, self.tables, strict=True)]

    def error(self, config: Tile) -> float:
        plan = Plan.build(self.row_adapter, self.tables[0], choose=lambda *_: config)
        for part in plan.parts:
            part.shrunk.fill_(math.nan)
        out = self.out[0].zero_()
        gpu.run(out, self.x[0], self.tables[0], plan)
        return float((out.to(self.delta.dtype) - self.delta).norm() / self.delta.norm())


def _delta(x: torch.Tensor, rows: Sequence[int], weights: LoraWeights) -> torch.Tensor:
    x = x.to(torch.float32 if x.is_cuda else torch.float64)
    row_adapter = torch.tensor(rows, device=x.device)
    delta = x.new_zeros(len(rows), weights.layout.columns[-1].stop)
    for by_adapter, piece in zip(weights.pairs, weights.layout.columns, strict=True):
        for adapter, pair in enumerate(by_adapter):
            if pair is not None:
                mine = (row_adapter == adapter).nonzero()[:, 0]
                delta[mine, piece] = (x[mine] @ pair.a.to(x.dtype).T) @ pair.b.to(x.dtype)
    return delta


class LoraTuning:
    """Tunes shrink and expand together, since they share the rows of a block and the worklist."""

    op = "lora"
    levels = LEVELS
    tolerance = 2e-2
    """Relative; bf16 rounds the shrunk activations and the output, about 3e-3 each."""

    def shapes(self, *, quick: bool) -> Sequence[Shape]:
        if quick:
            return [self._shape(4, rows, adapters, 96, 80, 4) for rows, adapters in ((1, 3), (2, 2), (17, 1))]
        return [
            self._shape(2, rows, adapters, inner, outer, rank)
            for rank in (16, 64)
            for rows, adapters in BATCHES
            for inner, outer in LAYERS
        ]

    def _shape(self, *numbers: int) -> Shape:
        return dict(zip(LEVELS, numbers, strict=True))

    def parse(self, values: Mapping[str, object]) -> Tile:
        return Tile.parse(values)

    def default(self, shape: Shape) -> Tile:
        return tile_for(shape["rows_per_segment"], shape["element_size"])

    def axes(self, shape: Shape, *, quick: bool) -> Mapping[str, Sequence[object]]:
        return {"inner": (32, 64), "fused": (True,)} if quick else AXES[kind(shape["rows_per_segment"])]

    def fits(self, shape: Shape, config: Tile, shared_memory: int) -> bool:
        """Return False also for tiles of another kind than the segments' (single rows, few, many)."""
        one_row = config.rows == 1
        if one_row != (kind(shape["rows_per_segment"]) == 0) or not self._useful(shape, config):
            return False
        threads, size = 32 * config.warps, shape["element_size"]
        if one_row:
            return max(config.ranks * config.inner, config.depth * config.outer) <= THREAD_ELEMENTS * threads
        products = config.rows * max(config.ranks, config.outer)
        staged = config.stages * (config.rows + config.ranks) * config.inner * size
        return products <= THREAD_ELEMENTS * threads and staged <= shared_memory

    def _useful(self, shape: Shape, config: Tile) -> bool:
        """Return False if a size is at least twice what the shape needs, unless the built-in tile's is as
        large.
        """
        widths, default = self._widths(shape), self.default(shape)
        chunks = -(-shape["rows_per_segment"] // config.rows) * shape["active_adapters"]
        most = {
            "rows": shape["rows_per_segment"],
            "ranks": shape["rank"] * len(widths),
            "inner": shape["inner"],
            "outer": max(widths),
            "depth": shape["rank"],
            "splits": min(-(-shape["inner"] // config.inner), -(-config.blocks // chunks)),
            "group": chunks,
        }
        return not any(
            getattr(config, name) > getattr(default, name) and getattr(config, name) >= 2 * value
            for name, value in most.items()
        )

    def _widths(self, shape: Shape) -> Sequence[int]:
        return LAYERS.get((shape["inner"], shape["outer"]), (shape["outer"] - 16, 16))

    def trial(self, shape: Shape, device: torch.device, cache: int, *, quick: bool) -> LoraTrial:
        rows, adapters = shape["rows_per_segment"], shape["active_adapters"]
        inner, outer, rank = shape["inner"], shape["outer"], shape["rank"]
        widths = self._widths(shape)
        dtype = torch.bfloat16 if shape["element_size"] == 2 else torch.float32
        bytes_of_one = adapters * rank * (inner * len(widths) + outer) + rows * adapters * (inner + outer)
        count = 1 if quick else max(2, math.ceil(cache / (bytes_of_one * shape["element_size"])))
        draw = torch.Generator(device).manual_seed(1)

        def random(*size: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(*size, generator=draw, device=device) * scale).to(dtype)

        def pair(width: int) -> LoraPair:
            return LoraPair(random(rank, inner, scale=inner**-0.5), random(rank, width))

        owners = Owners(device)
        sets = [
            concatenate([[pair(width) for _ in range(adapters)] for width in widths], widths, owners)
            for _ in range(count)
        ]
        row_adapter = tuple(adapter for adapter in range(adapters) for _ in range(rows))
        x = tuple(random(len(row_adapter), inner) for _ in sets)
        out = tuple(random(len(row_adapter), outer) for _ in sets)
        tables = tuple(RankRows.stacked(weights) for weights in sets if weights is not None)
        assert sets[0] is not None
        return LoraTrial(row_adapter, tables, x, out, _delta(x[0], row_adapter, sets[0]))


TUNING: Final = LoraTuning()

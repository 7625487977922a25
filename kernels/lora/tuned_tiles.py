"""Which tile suits a batch: the one measured at the nearest shape on this GPU, else the built-in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kernels import tuned
from kernels.lora.rank_rows import RankRows
from kernels.lora.tile import FEW_ROWS, Tile, tile_for

LEVELS: Final = ("element_size", "rows_per_segment", "active_adapters", "inner", "outer", "rank")
"""Active adapters are those of the batch's rows, not those that are loaded; rank is a slice's mean."""


def kind(rows: int) -> int:
    """0, 1 or 2: segments of one row, of few and of many, which no tile serves alike."""
    return (rows > 1) + (rows > FEW_ROWS)


def tuned_tiles(rows: RankRows, active_adapters: int) -> Callable[[int, int], Tile]:
    """Return a function from a segment's rows and the weights' element size to the tile, for `Plan.build`.

    Raises:
        ValueError: see `tuned.load`.
    """
    table = tuned.load("lora", rows.memory.device, LEVELS, Tile.parse)
    if table is None:
        return tile_for
    outer = sum(piece.stop - piece.start for piece in rows.columns)
    ranks = [last - first for by_adapter in rows.bounds for first, last in by_adapter if last > first]

    def choose(count: int, element_size: int) -> Tile:
        numbers = (
            element_size,
            count,
            active_adapters,
            rows.inner,
            outer,
            round(sum(ranks) / max(1, len(ranks))),
        )
        entry = table.nearest(dict(zip(LEVELS, numbers, strict=True)))
        alike = kind(entry.shape["rows_per_segment"]) == kind(count)
        return (
            entry.config
            if alike and entry.shape["element_size"] == element_size
            else tile_for(count, element_size)
        )

    return choose

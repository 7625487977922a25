"""How a batch is cut into blocks: sizes of the tiles, and which sizes suit which rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of one launch; each is a power of two.

    Attributes:
        rows: rows of a block. 1 multiplies without tensor cores; else at least 16, their least.
        ranks: ranks of a block.
        inner: input columns that the shrink takes at a time.
        outer: output columns of a block of the expand.
        splits: at most so many blocks share the input columns of one product.
        group: row chunks that read the same columns of B one after another, out of the L2 cache.
        warps: warps of a block.
        stages: depth of the software pipeline.
    """

    rows: int
    ranks: int
    inner: int
    outer: int
    splits: int
    group: int = 8
    warps: int = 4
    stages: int = 3

    def __post_init__(self) -> None:
        for name in ("rows", "ranks", "inner", "outer", "splits", "group", "warps"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"{name} is {value}; expected a power of two")
        if self.rows > 1 and min(self.rows, self.ranks, self.inner, self.outer) < 16:
            raise ValueError(f"rows, ranks, inner and outer of {self} must be at least 16 when rows is not 1")


# Untuned on hardware; chosen so that a block of the first kind holds 8 KB of weights in flight (16 x 256
# of 2 bytes, what hides the latency of device memory at 8 blocks a multiprocessor) and so that no kind
# spills registers (the ahead-of-time test holds that for sm_80, sm_90 and sm_100).
SINGLE = Tile(rows=1, ranks=16, inner=256, outer=256, splits=16)
"""Segments of one row: decode with an adapter per row. Bound by reading the weights."""
FEW = Tile(rows=16, ranks=16, inner=128, outer=128, splits=16)
"""Segments of 2 to 16 rows: decode where tenants have several requests in flight."""
MANY = Tile(rows=64, ranks=32, inner=64, outer=128, splits=8)
"""Longer segments: prefill. Bound by the tensor cores and by reading x."""


MANY_WIDE = Tile(rows=32, ranks=16, inner=32, outer=64, splits=8)
"""As `MANY`, of 4-byte weights: exact float32 products run without tensor cores, from registers, and at
64 x 128 they spilled 13 KB a thread."""


def tile_for(rows: int, element_size: int = 2) -> Tile:
    """The tile of a segment of so many rows, with weights of so many bytes an element."""
    if rows == 1:
        return SINGLE
    if rows <= FEW.rows:
        return FEW
    return MANY if element_size <= 2 else MANY_WIDE

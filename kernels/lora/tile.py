"""Tile sizes that cut a batch into blocks, and their choice by number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of one launch; all are powers of two except `stages`.

    Shrink and expand share `rows`, since an expand waits for the shrink of its rows; so one tile describes
    both.

    Attributes:
        rows: rows of a block. 1 multiplies without tensor cores; else at least 16, their minimum.
        ranks: ranks of a block of the shrink, of all slices together.
        inner: input columns that the shrink loads at a time.
        outer: output columns of a block of the expand.
        depth: ranks that the expand loads at a time.
        splits: most blocks that share the input columns of one product.
        blocks: the shrink is split until it has this many blocks.
        group: row chunks that read the same columns of B consecutively, from the L2 cache.
        warps: warps of a block.
        stages: depth of the software pipeline.
        fused: shrink and expand are one launch.
    """

    rows: int
    ranks: int
    inner: int
    outer: int
    depth: int = 16
    splits: int = 8
    blocks: int = 512
    group: int = 8
    warps: int = 4
    stages: int = 3
    fused: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "ranks", "inner", "outer", "depth", "splits", "blocks", "group", "warps"):
            value = getattr(self, name)
            if type(value) is not int or value < 1 or value & (value - 1):
                raise ValueError(f"{name} is {value!r}; expected a power of two")
        if type(self.stages) is not int or not 1 <= self.stages <= 8:
            raise ValueError(f"stages is {self.stages!r}; expected 1 to 8")
        if type(self.fused) is not bool:
            raise ValueError(f"fused is {self.fused!r}; expected true or false")
        for name in ("inner", "outer"):
            # The kernels promise the compiler that blocks of columns begin at multiples of this number of
            # elements.
            if getattr(self, name) < VECTOR:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {VECTOR}")
        if self.rows > 1 and min(self.rows, self.ranks, self.inner, self.outer, self.depth) < 16:
            names = "rows, ranks, inner, outer and depth"
            raise ValueError(f"{names} of {self} must be at least 16 when rows is not 1")

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> Tile:
        """Return the tile in a configuration file.

        Raises:
            ValueError: an unknown or missing name, or an invalid size.
        """
        names = {field.name for field in fields(cls)}
        if unknown := sorted(values.keys() - names):
            raise ValueError(f"unknown {', '.join(unknown)}; expected some of {', '.join(sorted(names))}")
        if missing := sorted({"rows", "ranks", "inner", "outer"} - values.keys()):
            raise ValueError(f"{', '.join(missing)} missing")
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks the types

    def written(self) -> dict[str, int | bool]:
        """Return the values that `parse` reads."""
        return asdict(self)


FEW_ROWS = 16
"""Most rows of a segment that counts as few: those of one tensor core tile."""
VECTOR = 8
"""Contiguous elements that a thread of a one-row block holds: 16 bytes of 2-byte weights."""

# Derived by reasoning, not measured (see README.md): about 40 KB in flight per multiprocessor keep device
# memory busy, so blocks of which four fit hold 16 KB of weights each. No kind spills registers.
SINGLE = Tile(rows=1, ranks=16, inner=512, outer=512)
"""Segments of one row: decode with an adapter per row. Bound by reading the weights."""
FEW = Tile(rows=16, ranks=16, inner=128, outer=256, stages=4)
"""Segments of 2 to 16 rows: decode where tenants have several requests in flight."""
FEW_WIDE = Tile(rows=16, ranks=16, inner=64, outer=64)
"""As `FEW`, of 4-byte weights: exact float32 products run without tensor cores, from registers, and with
64 rows x 128 columns they spilled 13 KB a thread."""
MANY = Tile(rows=64, ranks=64, inner=64, outer=128, blocks=256, warps=8, stages=4)
"""Longer segments: prefill. Bound by reading x and the base output; q, k and v's ranks fit one block."""
MANY_WIDE = Tile(rows=32, ranks=16, inner=32, outer=64, blocks=256)
"""As `MANY`, of 4-byte weights."""


def tile_for(rows: int, element_size: int = 2) -> Tile:
    """Return the default tile for a segment of `rows` rows, with weights of `element_size` bytes."""
    if rows == 1:
        return SINGLE
    if rows <= FEW_ROWS:
        return FEW if element_size <= 2 else FEW_WIDE
    return MANY if element_size <= 2 else MANY_WIDE

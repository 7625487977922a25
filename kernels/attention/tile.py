"""Tile sizes that cut attention into blocks on CUDA, and their choice by number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Sizes of one launch; all are powers of two except `stages`.

    The attention kernel and the combine kernel share the parts, so one tile describes both.

    Attributes:
        rows: rows of a block, a row being one head of one query; at least 16, a tensor core's minimum, and
            raised to the number of heads that share a kv head.
        keys: keys that a block loads at a time; at least 16.
        part: fewest keys worth a block of their own.
        blocks: long contexts are cut into parts until there are this many blocks.
        warps: warps of a block.
        stages: depth of the software pipeline.
    """

    rows: int
    keys: int
    part: int = 512
    blocks: int = 512
    warps: int = 4
    stages: int = 3

    def __post_init__(self) -> None:
        for name, least in (("rows", 16), ("keys", 16), ("part", 16), ("blocks", 1), ("warps", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least or value & (value - 1):
                raise ValueError(f"{name} is {value!r}; expected a power of two, at least {least}")
        if type(self.stages) is not int or not 1 <= self.stages <= 8:
            raise ValueError(f"stages is {self.stages!r}; expected 1 to 8")

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> AttentionTile:
        """Return the tile in a configuration file. Raises ValueError for a wrong name or size."""
        names = {field.name for field in fields(cls)}
        if unknown := sorted(values.keys() - names):
            raise ValueError(f"unknown {', '.join(unknown)}; expected some of {', '.join(sorted(names))}")
        if missing := sorted({"rows", "keys"} - values.keys()):
            raise ValueError(f"{', '.join(missing)} missing")
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks the types

    def written(self) -> dict[str, int]:
        """Return the values that `parse` reads."""
        return asdict(self)


DECODE_ROWS = 16
"""Rows of the smallest tile: sequences with at most this many use decode's tile, others that of prefill."""


def tile_for(rows: int, head_dim: int, element_size: int = 2) -> AttentionTile:
    """Return the default tile of a sequence; derived by reasoning, not measured.

    Decode (16 rows) is bound by reading keys and values: small blocks, five to a multiprocessor, with two
    pairs of 8 KB tiles each. The compiler gives half of the stages to the page numbers, hence 5. Prefill is
    compute-bound: 64 rows are one warp group's matrix instruction, and each loaded key serves all of them.

    Args:
        rows: the sequence's new tokens times the heads that share a kv head.
        element_size: bytes per element of a key.
    """
    width = block_dim(head_dim) * element_size
    if rows <= DECODE_ROWS:
        return AttentionTile(rows=DECODE_ROWS, keys=max(16, min(64, 8192 // width)), part=256, stages=5)
    if element_size > 2:
        # Exact float32 products run without tensor cores, from registers.
        return AttentionTile(rows=32, keys=16, part=1024, stages=2)
    # Heads of 128 and more in 4 warps spilled 32 to 56 bytes a thread on sm_80.
    warps = 4 if width < 256 else 8
    return AttentionTile(rows=64, keys=max(32, min(64, 16384 // width)), part=1024, warps=warps)


def block_dim(head_dim: int) -> int:
    """Return the power of two to which a head's elements are padded."""
    return max(16, 1 << (head_dim - 1).bit_length())

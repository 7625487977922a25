"""Which tile suits a batch: the one measured at the nearest shape on this GPU, else the built-in one."""

from __future__ import annotations

from typing import Final

from kernels import tuned
from kernels.attention.plan import AttentionPlan
from kernels.attention.tile import DECODE_ROWS, AttentionTile, tile_for
from kernels.attention.worklist import Choose, Heads

LEVELS: Final = ("element_size", "head_dim", "rows", "group", "sequences", "context")
"""rows are a sequence's new tokens times the heads that share a kv head (group); sequences are those with new
tokens, and context is their mean."""


def tuned_tiles(plan: AttentionPlan, heads: Heads) -> Choose:
    """The choice for `DevicePlan.build`.

    Raises:
        ValueError: see `tuned.load`.
    """
    table = tuned.load("attention", plan.device, LEVELS, AttentionTile.parse)
    if table is None:
        return tile_for
    contexts = [
        context for queries, context in zip(plan.query_lens, plan.context_lens, strict=True) if queries
    ]
    mean = max(1, round(sum(contexts) / max(1, len(contexts))))

    def choose(rows: int, head_dim: int, element_size: int) -> AttentionTile:
        numbers = (element_size, head_dim, max(rows, 1), heads.group, max(len(contexts), 1), mean)
        entry = table.nearest(dict(zip(LEVELS, numbers, strict=True)))
        alike = (entry.shape["rows"] <= DECODE_ROWS) == (rows <= DECODE_ROWS)
        exact = entry.shape["element_size"] == element_size and entry.shape["head_dim"] == head_dim
        return entry.config if alike and exact else tile_for(rows, head_dim, element_size)

    return choose

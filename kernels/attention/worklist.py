"""The worklist of queries and keys per block, built on the host once per step and window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kernels.attention.plan import AttentionPlan
from kernels.attention.tile import AttentionTile, tile_for

FIELDS: Final = 8
"""sequence, first row of q, queries, position of the first query, first key, last key + 1, index of the first
query's part, parts of each query.
"""

Table = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
Choose = Callable[[int, int, int], AttentionTile]


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of a layer.

    Attributes:
        element_size: bytes per element of q.
    """

    count: int
    kv_count: int
    dim: int
    element_size: int

    @property
    def group(self) -> int:
        """Heads that share a kv head."""
        return self.count // self.kv_count


@dataclass(frozen=True, slots=True)
class Worklist:
    """Blocks of one tile.

    Attributes:
        items: int32 [items, FIELDS]; each is one block per kv head.
        row_parts: int32 [rows, 2], index of the first part and number of parts; 0 parts for other tiles'
            rows.
        places: parts of all rows together.
    """

    tile: AttentionTile
    items: Table
    row_parts: Table
    places: int

    @property
    def split(self) -> bool:
        """True if any query's keys are split into several parts."""
        return bool((self.items[:, 7] > 1).any())


def worklists(plan: AttentionPlan, heads: Heads, window: int, *, choose: Choose = tile_for) -> list[Worklist]:
    """Return one worklist per tile, such as one for decode rows and one for prefill chunks."""
    rows_of = [queries * heads.group for queries in plan.query_lens]
    wanted = sorted(set(rows_of) - {0})
    tiles = {rows: fitted(choose(rows, heads.dim, heads.element_size), heads) for rows in wanted}
    chosen = [tiles.get(rows) for rows in rows_of]
    return [
        build(plan, heads, window, tile, [index for index, other in enumerate(chosen) if other == tile])
        for tile in dict.fromkeys(tiles.values())
    ]


def fitted(tile: AttentionTile, heads: Heads) -> AttentionTile:
    """Return the tile, large enough for one query with all heads that share a kv head."""
    return replace(tile, rows=max(tile.rows, 1 << (heads.group - 1).bit_length()))


def build(
    plan: AttentionPlan, heads: Heads, window: int, tile: AttentionTile, sequences: Sequence[int]
) -> Worklist:
    """Return the worklist of the given sequences."""
    chunks = _chunks(plan, tile.rows // heads.group, window, sequences)
    count, begin, end = chunks[:, 2], chunks[:, 4], chunks[:, 5]
    keys = end - begin
    # Make all parts about the same size across sequences, so that no block processes a long context alone.
    fill = -(-int(keys.sum()) * heads.kv_count // tile.blocks) if len(keys) else 0
    step = -(-max(tile.part, fill) // tile.keys) * tile.keys
    parts = -(-keys // step)
    chunk = np.repeat(np.arange(len(chunks)), parts)
    part = np.arange(len(chunk)) - np.repeat(parts.cumsum() - parts, parts)
    places = (count * parts).cumsum() - count * parts
    items = np.empty((len(chunk), FIELDS), dtype=np.int32)
    items[:, :4] = chunks[chunk, :4]
    items[:, 4] = begin[chunk] + part * step
    items[:, 5] = np.minimum(items[:, 4] + step, end[chunk])
    items[:, 6] = places[chunk] + part
    items[:, 7] = parts[chunk]
    token = np.arange(int(count.sum())) - np.repeat(count.cumsum() - count, count)
    row_parts = np.zeros((plan.rows, 2), dtype=np.int32)
    row = np.repeat(chunks[:, 1], count) + token
    row_parts[row, 0] = np.repeat(places, count) + token * np.repeat(parts, count)
    row_parts[row, 1] = np.repeat(parts, count)
    return Worklist(tile, items, row_parts, int((count * parts).sum()))


def _chunks(
    plan: AttentionPlan, tokens: int, window: int, sequences: Sequence[int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return [chunks, 6]: sequence, first row of q, queries, first position, first key, last key + 1."""
    first_row = np.concatenate([[0], np.cumsum(plan.query_lens, dtype=np.int64)])
    chunks = []
    for sequence in sequences:
        queries, context = plan.query_lens[sequence], plan.context_lens[sequence]
        for first in range(0, queries, tokens):
            count, position = min(tokens, queries - first), context - queries + first
            begin = max(0, position - window + 1) if window else 0
            chunks.append((sequence, first_row[sequence] + first, count, position, begin, position + count))
    return np.array(chunks, dtype=np.int64).reshape(-1, 6)


def block_table(plan: AttentionPlan) -> Table:
    """Return int32 [sequences, most pages]; entries after a sequence's pages are 0 and never read."""
    counts = [-(-context // plan.page_size) for context in plan.context_lens]
    table = np.zeros((len(counts), max(counts, default=0)), dtype=np.int32)
    for sequence, count in enumerate(counts):
        table[sequence, :count] = plan.pages[sequence][:count]
    return table

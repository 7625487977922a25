"""Which block reads which queries and which keys: written on the host, once per step, for every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch

FIELDS: Final = 8
"""sequence, first row of q, queries, position of the first query, first key, last key + 1, split, unused."""

KEYS_PER_SPLIT: Final = 512
"""Fewest keys worth a block of their own; untuned."""

BLOCKS_WANTED: Final = 256


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Attributes:
    items: int32 [blocks, FIELDS].
    splits: parts of the keys; each query has a place in each part.
    rows: queries of the whole batch.
    tokens: most queries of one block.
    window: see `reference.attend`.
    """

    items: torch.Tensor
    splits: int
    rows: int
    tokens: int
    window: int

    @classmethod
    def of(
        cls,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        *,
        group: int,
        window: int = 0,
        device: torch.device | str = "cpu",
        splits: int | None = None,
    ) -> Self:
        """Cuts a batch into blocks of at most 16 (decode) or 64 rows of (query, head of one kv head).

        Args:
            query_lens: queries of each sequence in this step.
            context_lens: tokens of each sequence including them.
            group: heads that share a kv head.
            splits: parts of the keys; by default as many as fill the device.
        """
        if len(query_lens) != len(context_lens):
            raise ValueError(
                f"context_lens has {len(context_lens)} sequences; expected {len(query_lens)} as in query_lens"
            )
        for index, (queries, context) in enumerate(zip(query_lens, context_lens, strict=True)):
            if not 0 <= queries <= context:
                raise ValueError(
                    f"query_lens[{index}] is {queries}; expected 0 to context_lens[{index}], {context}"
                )
        tokens = max(1, block_rows(max(query_lens, default=1) * group) // group)
        chunks = sum(-(-queries // tokens) for queries in query_lens)
        if splits is None:
            longest = max(context_lens, default=1)
            splits = max(1, min(-(-longest // KEYS_PER_SPLIT), BLOCKS_WANTED // max(chunks, 1)))
        items: list[tuple[int, ...]] = []
        row = 0
        for sequence, (queries, context) in enumerate(zip(query_lens, context_lens, strict=True)):
            for first in range(0, queries, tokens):
                count = min(tokens, queries - first)
                position = context - queries + first
                begin, end = max(0, position - window + 1) if window else 0, position + count
                step = -(-(end - begin) // splits)
                items += [
                    (sequence, row + first, count, position, *_part(begin, end, step, split), split, 0)
                    for split in range(splits)
                ]
            row += queries
        table = torch.tensor(items, dtype=torch.int32).reshape(-1, FIELDS)
        if torch.device(device).type == "cuda":
            table = table.pin_memory()
        return cls(table.to(device, non_blocking=True), splits, row, tokens, window)


def _part(begin: int, end: int, step: int, split: int) -> tuple[int, int]:
    return min(begin + split * step, end), min(begin + (split + 1) * step, end)


def block_rows(wanted: int) -> int:
    """Rows of a block: the least of a tensor core tile for decode, four of it for prefill."""
    return 16 if wanted <= 16 else 64

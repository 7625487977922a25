"""Attention within chunks of positions (Llama 4): a query sees its own chunk's tokens up to itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from kernels.attention import AttentionPlan


def chunked(plan: AttentionPlan, size: int) -> AttentionPlan:
    """Return a plan in which the part of each sequence within a chunk is a sequence of its own.

    Rows and slots stay the same. The result is cached in the plan, for all layers.

    Args:
        size: positions of a chunk, a multiple of the page size.
    """
    key = ("chunked", size)
    if key not in plan.kept:
        queries: list[int] = []
        contexts: list[int] = []
        pages: list[Sequence[int]] = []
        for count, context, held in zip(plan.query_lens, plan.context_lens, plan.pages, strict=True):
            start = context - count
            while start < context:
                first = start // size * size
                stop = min(first + size, context)
                queries.append(stop - start)
                contexts.append(stop - first)
                pages.append(held[first // plan.page_size : -(-stop // plan.page_size)])
                start = stop
        plan.kept[key] = AttentionPlan(
            tuple(queries), tuple(contexts), tuple(pages), plan.page_size, plan.slots
        )
    return cast(AttentionPlan, plan.kept[key])

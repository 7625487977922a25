"""A step's attention metadata: query lengths, context lengths and pages per sequence."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from kernels.transfer import to_device

if TYPE_CHECKING:
    from kernels.attention.graph import GraphAttention


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """One step's sequences, for all layers; their rows are concatenated.

    Attributes:
        query_lens: new tokens of each sequence, the rows of this step.
        context_lens: tokens of each sequence, including the new ones.
        pages: block table: pages of each sequence in order; more than the context needs are allowed.
        page_size: tokens per page.
        slots: int64 [rows] on the device, where each row's key and value are stored: page * page_size +
            offset.
        kept: cache of implementations for this step, by their own keys.
        graph: the tensors that replays of a captured step read; the other fields are those of the capture.
    """

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    pages: tuple[Sequence[int], ...]
    page_size: int
    slots: torch.Tensor
    kept: dict[Hashable, object] = field(default_factory=dict)
    graph: GraphAttention | None = None

    @classmethod
    def build(
        cls,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        pages: Sequence[Sequence[int]],
        *,
        page_size: int,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Build the plan. Raises ValueError for mismatching lengths or pages."""
        if page_size < 1:
            raise ValueError(f"page_size is {page_size}; expected at least 1")
        for name, values in (("context_lens", context_lens), ("pages", pages)):
            if len(values) != len(query_lens):
                raise ValueError(f"{name} has {len(values)} sequences; query_lens has {len(query_lens)}")
        for index, (queries, context) in enumerate(zip(query_lens, context_lens, strict=True)):
            if not 0 <= queries <= context:
                raise ValueError(
                    f"query_lens[{index}] is {queries}; expected 0 to context_lens[{index}], {context}"
                )
            needed = -(-context // page_size)
            if len(pages[index]) < needed:
                raise ValueError(
                    f"pages[{index}] has {len(pages[index])} pages; "
                    f"expected at least {needed} for {context} tokens in pages of {page_size}"
                )
        slots = np.array(_new_slots(query_lens, context_lens, pages, page_size), dtype=np.int64)
        return cls(
            tuple(query_lens),
            tuple(context_lens),
            tuple(pages),
            page_size,
            to_device(slots, torch.device(device)),
        )

    @property
    def rows(self) -> int:
        return self.slots.shape[0]

    @property
    def device(self) -> torch.device:
        return self.slots.device


def whole_pages(kv_pages: torch.Tensor) -> bool:
    """Return True if each page of a head is contiguous; the strides between pages and heads may be any."""
    page_size, head_dim = kv_pages.shape[3:]
    return (page_size == 1 or kv_pages.stride(3) == head_dim) and (head_dim == 1 or kv_pages.stride(4) == 1)


def _new_slots(
    query_lens: Sequence[int], context_lens: Sequence[int], pages: Sequence[Sequence[int]], page_size: int
) -> list[int]:
    slots: list[int] = []
    for queries, context, held in zip(query_lens, context_lens, pages, strict=True):
        slots += [
            held[position // page_size] * page_size + position % page_size
            for position in range(context - queries, context)
        ]
    return slots

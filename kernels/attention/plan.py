"""What attention must know of a step: whose queries, how much context, in which pages."""

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
    """One step's sequences, stated once for all layers; their rows lie one after another.

    Attributes:
        query_lens: new tokens of each sequence, the rows of this step.
        context_lens: tokens of each sequence, the new ones included.
        pages: pages of each sequence in order; more than the context needs are allowed.
        page_size: tokens a page.
        slots: int64 [rows] on the device, where each row's key and value belong: page * page_size + offset.
        kept: what an implementation worked out for this step, by its own key.
        graph: of a captured step, the tensors that its replays read; what else is here is of its capture.
    """

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    pages: tuple[Sequence[int], ...]
    page_size: int
    slots: torch.Tensor
    kept: dict[Hashable, object] = field(default_factory=dict)
    graph: GraphAttention | None = None

    @classmethod
    def of(
        cls,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        pages: Sequence[Sequence[int]],
        *,
        page_size: int,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Raises ValueError for lengths or pages that do not fit each other."""
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
    """Whether each page of a head is contiguous, however pages and heads lie to each other."""
    page_size, head_dim = kv_pages.shape[3:]
    return (page_size == 1 or kv_pages.stride(3) == head_dim) and (head_dim == 1 or kv_pages.stride(4) == 1)


def _new_slots(
    query_lens: Sequence[int], context_lens: Sequence[int], pages: Sequence[Sequence[int]], page_size: int
) -> list[int]:
    slots: list[int] = []
    for queries, context, held in zip(query_lens, context_lens, pages, strict=True):
        slots += [
            held[at // page_size] * page_size + at % page_size for at in range(context - queries, context)
        ]
    return slots

"""Batches for paged attention: pages in shuffled order, NaN wherever no sequence's own token lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.gpu.lora_inputs import Work
from benchmarks.gpu.verdict import op_module
from kernels.attention import AttentionPlan, reference

PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's attention."""

    model: str
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """One step's arguments of `attend`."""

    q: torch.Tensor
    kv_pages: torch.Tensor
    plan: AttentionPlan
    scale: float
    window: int
    sinks: torch.Tensor | None

    @classmethod
    def draw(
        cls,
        heads: Heads,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        window: int = 0,
        sinks: bool = False,
    ) -> AttentionInputs:
        counts = [-(-context // PAGE_SIZE) for context in context_lens]
        order = torch.randperm(sum(counts) + 2)[: sum(counts)]
        pages = [held.tolist() for held in torch.split(order, counts)]
        plan = AttentionPlan.build(query_lens, context_lens, pages, page_size=PAGE_SIZE, device=device)
        shape = (2, heads.kv_heads, sum(counts) + 2, PAGE_SIZE, heads.head_dim)
        kv_pages = torch.randn(shape, dtype=dtype, device=device)
        owned = torch.zeros(shape[2] * PAGE_SIZE, dtype=torch.bool)
        for held, context in zip(pages, context_lens, strict=True):
            slots = torch.tensor(held).unsqueeze(1) * PAGE_SIZE + torch.arange(PAGE_SIZE)
            owned[slots.reshape(-1)[:context]] = True
        kv_pages.flatten(2, 3)[:, :, (~owned).to(device)] = float("nan")
        q = torch.randn(sum(query_lens), heads.heads, heads.head_dim, dtype=dtype, device=device)
        drawn = torch.randn(heads.heads, device=device).to(dtype) if sinks else None
        return cls(q, kv_pages, plan, heads.head_dim**-0.5, window, drawn)

    def attend(self) -> torch.Tensor:
        """The implementation of this device."""
        attend = op_module("attention", self.q.device).attend
        result: torch.Tensor = attend(
            self.q, self.kv_pages, self.plan, scale=self.scale, window=self.window, sinks=self.sinks
        )
        return result

    def specified(self, dtype: torch.dtype) -> torch.Tensor:
        sinks = None if self.sinks is None else self.sinks.to(dtype)
        q, kv_pages = self.q.to(dtype), self.kv_pages.to(dtype)
        return reference.attend(q, kv_pages, self.plan, scale=self.scale, window=self.window, sinks=sinks)


def work(heads: Heads, query_lens: Sequence[int], context_lens: Sequence[int], element_size: int) -> Work:
    """Each context's keys and values once, q once, the output once; two products a visible key."""
    rows = sum(query_lens)
    keys = 2 * sum(context_lens) * heads.kv_heads * heads.head_dim
    visible = sum(
        queries * (context - queries) + queries * (queries + 1) // 2
        for queries, context in zip(query_lens, context_lens, strict=True)
    )
    nbytes = (keys + 2 * rows * heads.heads * heads.head_dim) * element_size
    return Work(nbytes, 4 * visible * heads.heads * heads.head_dim)

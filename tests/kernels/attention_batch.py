"""Batches for attention's tests: shuffled pages, NaN in all unused slots, the exact result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.attention import AttentionPlan, reference


@dataclass(frozen=True, slots=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's arguments of `attend`."""

    q: torch.Tensor
    kv_pages: torch.Tensor
    plan: AttentionPlan
    scale: float
    window: int
    sinks: torch.Tensor | None

    def exact(self) -> torch.Tensor:
        """The specification in float64."""
        return self._specified(torch.float64)

    def allowed(self) -> float:
        """Twice the error of the specification in the batch's own dtype, and roundings of the largest value:
        one, or in float32 the 20 that torch's attention kernel allows its exponentials."""
        dtype, exact = self.q.dtype, self.exact()
        roundings = 20 if dtype == torch.float32 else 1
        error = (self._specified(dtype) - exact).abs().max()
        return float(2 * error + roundings * torch.finfo(dtype).eps * exact.abs().max())

    def _specified(self, dtype: torch.dtype) -> torch.Tensor:
        q, kv_pages = self.q.to(dtype), self.kv_pages.to(dtype)
        sinks = None if self.sinks is None else self.sinks.to(dtype)
        out = reference.attend(q, kv_pages, self.plan, scale=self.scale, window=self.window, sinks=sinks)
        return out.double()

    def check(self, result: torch.Tensor) -> None:
        """Fails where `result` is further from the exact one than allowed, or no number."""
        assert result.shape == self.q.shape
        assert result.dtype == self.q.dtype
        if result.numel():
            assert (result.double() - self.exact()).abs().max() <= self.allowed()


def batch(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    shape: Shape,
    dtype: torch.dtype,
    *,
    window: int = 0,
    sinks: bool = False,
    shuffled: bool = True,
    seed: int = 1,
) -> Batch:
    """A random batch; pages in order where not `shuffled`. Two pages belong to no one."""
    draw = torch.Generator().manual_seed(seed)
    counts = [-(-context // shape.page_size) for context in context_lens]
    total = sum(counts) + 2
    order = torch.randperm(total, generator=draw).tolist() if shuffled else [*range(1, total), 0]
    size = (2, shape.kv_heads, total, shape.page_size, shape.head_dim)
    kv_pages = torch.full(size, float("nan"), dtype=dtype)
    pages = []
    for context, count in zip(context_lens, counts, strict=True):
        held, order = order[:count], order[count:]
        pages.append(held)
        for index, page in enumerate(held):
            filled = min(shape.page_size, context - index * shape.page_size)
            drawn = torch.randn(2, shape.kv_heads, filled, shape.head_dim, generator=draw)
            kv_pages[:, :, page, :filled] = drawn.to(dtype)
    q = torch.randn(sum(query_lens), shape.heads, shape.head_dim, generator=draw).to(dtype)
    logits = torch.randn(shape.heads, generator=draw).to(dtype) if sinks else None
    plan = AttentionPlan.build(query_lens, context_lens, pages, page_size=shape.page_size)
    return Batch(q, kv_pages, plan, shape.head_dim**-0.5, window, logits)

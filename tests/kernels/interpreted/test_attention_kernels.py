"""Paged attention against the specification in float64, with keys of no sequence set to NaN."""

from __future__ import annotations

import pytest
import torch

from kernels.attention import gpu, reference
from kernels.attention.plan import AttentionPlan


def batch(
    context_lens: list[int], kv_heads: int, head_dim: int, page: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values and a shuffled block table; what no sequence owns is NaN."""
    torch.manual_seed(head_dim)
    counts = [-(-context // page) for context in context_lens]
    order = torch.randperm(sum(counts) + 2).tolist()
    table = torch.full((len(counts), max(counts)), order.pop(), dtype=torch.int32)
    k = torch.full((sum(counts) + 2, page, kv_heads, head_dim), float("nan"), dtype=dtype)
    v = k.clone()
    for sequence, context in enumerate(context_lens):
        for index in range(counts[sequence]):
            table[sequence, index] = number = order.pop()
            held = min(page, context - index * page)
            k[number, :held] = torch.randn(held, kv_heads, head_dim).to(dtype)
            v[number, :held] = torch.randn(held, kv_heads, head_dim).to(dtype)
    return k, v, table


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("query_lens", "context_lens", "heads", "kv_heads", "head_dim", "page", "window", "sinks"),
    [
        ([1, 1, 1], [1, 42, 123], 6, 2, 64, 16, 0, False),
        ([1, 1], [70, 9], 8, 1, 40, 8, 20, True),
        ([33, 0, 6], [33, 5, 50], 4, 2, 32, 16, 0, True),
        ([20, 1], [60, 61], 2, 2, 256, 16, 7, False),
        ([1], [6], 71, 1, 16, 4, 0, False),
    ],
    ids=["decode", "window-sinks", "prefill", "wide-head", "many-heads"],
)
def test_matches_the_specification(
    query_lens: list[int],
    context_lens: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    page: int,
    window: int,
    sinks: bool,
    dtype: torch.dtype,
    splits: int,
) -> None:
    k, v, table = batch(context_lens, kv_heads, head_dim, page, dtype)
    q = torch.randn(sum(query_lens), heads, head_dim).to(dtype)
    logits = torch.randn(heads) if sinks else None
    plan = AttentionPlan.of(query_lens, context_lens, group=heads // kv_heads, window=window, splits=splits)
    scale = head_dim**-0.5
    result = gpu.attend(q, k, v, table, plan, scale=scale, sinks=logits)

    def specified(kind: torch.dtype) -> torch.Tensor:
        tensors = (q.to(kind), k.to(kind), v.to(kind))
        out = reference.attend(
            *tensors, table, query_lens, context_lens, scale=scale, window=window, sinks=logits
        )
        return out.double()

    expected = specified(torch.float64)
    allowed = 2 * (specified(dtype) - expected).abs().max() + torch.finfo(dtype).eps * expected.abs().max()
    assert (result.double() - expected).abs().max() <= allowed


def test_bad_arguments_are_named() -> None:
    k, v, table = batch([5], 2, 16, 4, torch.float32)
    plan = AttentionPlan.of([1], [5], group=2)
    q = torch.randn(1, 4, 16)
    with pytest.raises(ValueError, match=r"q has shape \[2, 4, 16\]; expected \[1, heads"):
        gpu.attend(q.repeat(2, 1, 1), k, v, table, plan, scale=1.0)
    with pytest.raises(ValueError, match=r"v_pages has shape \[4, 4, 2, 8\]; expected \[pages, page_size"):
        gpu.attend(q, k, v[..., :8], table, plan, scale=1.0)
    with pytest.raises(ValueError, match=r"block_table has shape \[1, 2\], torch.int64"):
        gpu.attend(q, k, v, table.long(), plan, scale=1.0)
    with pytest.raises(ValueError, match=r"sinks has shape \[3\]; expected \[4\]"):
        gpu.attend(q, k, v, table, plan, scale=1.0, sinks=torch.zeros(3))
    with pytest.raises(ValueError, match=r"query_lens\[0\] is 6; expected 0 to context_lens\[0\], 5"):
        AttentionPlan.of([6], [5], group=2)

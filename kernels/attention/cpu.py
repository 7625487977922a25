"""Paged attention in plain PyTorch: few large calls on gathered keys, as `buckets.py` cuts the batch.

The heads of one kv head stand as rows of one query matrix, so keys are read once per group and never copied
per head. Scores keep float32's accuracy: `scaled_dot_product_attention` has them in float32, and large bf16
decode batches, where batched products are faster, take their scores relative to the largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention import native_attention
from kernels.attention.buckets import Bucket, buckets
from kernels.attention.plan import AttentionPlan

BATCHED_KEYS: Final = 8192
"""Keys of all sequences and kv heads from which two batched products for the scores are faster in bf16 than
torch's attention kernel: by 5-15%, measured at 3 and 4 heads a kv head."""


def attend(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The signature of `kernels.attention.attend`, on any device; pages of a larger pool are copied first."""
    if not kv_pages.is_contiguous():
        index, plan = _own_pages(plan)
        kv_pages = kv_pages.index_select(2, index)
    plain = sinks is None or (sinks.dtype == torch.float32 and sinks.is_contiguous())
    if plain and native_attention.fits(q):
        return native_attention.attend(q, kv_pages, plan, scale=scale, window=window, sinks=sinks)
    kv = kv_pages.flatten(0, 1).flatten(1, 2)
    calls = _calls(plan, window, kv)
    if len(calls.buckets) == 1:
        return _attend(q, kv, calls.buckets[0], calls.scratch, scale, sinks)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for bucket in calls.buckets:
        out[bucket.rows] = _attend(q[bucket.rows], kv, bucket, calls.scratch, scale, sinks)
    return out


def _own_pages(plan: AttentionPlan) -> tuple[torch.Tensor, AttentionPlan]:
    """The pages that the step's sequences read, and the plan over a pool of these alone."""
    if "own pages" not in plan.kept:
        read = [
            pages[: -(-context // plan.page_size)]
            for pages, context in zip(plan.pages, plan.context_lens, strict=True)
        ]
        place = {page: index for index, page in enumerate(sorted({page for pages in read for page in pages}))}
        moved = tuple([place[page] for page in pages] for pages in read)
        index = torch.tensor(list(place), dtype=torch.int64, device=plan.device)
        compact = AttentionPlan(plan.query_lens, plan.context_lens, moved, plan.page_size, plan.slots)
        plan.kept["own pages"] = (index, compact)
    return cast("tuple[torch.Tensor, AttentionPlan]", plan.kept["own pages"])


@dataclass(frozen=True, slots=True)
class _Calls:
    """A step's calls, and room for what any of them gathers."""

    buckets: list[Bucket]
    scratch: torch.Tensor


def _calls(plan: AttentionPlan, window: int, kv: torch.Tensor) -> _Calls:
    key = ("cpu", window, kv.dtype, kv.shape[0], kv.shape[2])
    kept = plan.kept.get(key)
    if not isinstance(kept, _Calls):
        row = kv.shape[0] * kv.shape[2]
        found = buckets(plan, window, row * kv.element_size(), kv.dtype)
        most = max((len(one.slots) for one in found if isinstance(one.slots, torch.Tensor)), default=0)
        room = torch.empty(most * row, dtype=kv.dtype, device=kv.device)
        kept = plan.kept[key] = _Calls(found, room)
    return kept


def _attend(
    q: torch.Tensor,
    kv: torch.Tensor,
    call: Bucket,
    scratch: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """[rows, heads, head_dim] of one bucket; kv is [2 * kv_heads, slots, head_dim]."""
    rows, heads, head_dim = q.shape
    kv_heads = kv.shape[0] // 2
    group = heads // kv_heads
    if isinstance(call.slots, slice):
        held = kv[:, call.slots]
    else:
        room = scratch[: kv.shape[0] * call.slots.shape[0] * head_dim]
        held = torch.index_select(kv, 1, call.slots, out=room.view(kv.shape[0], -1, head_dim))
    if rows == call.sequences:
        keys_read = kv_heads * held.shape[1]
        if (
            sinks is None
            and q.dtype == torch.bfloat16
            and q.device.type == "cpu"
            and keys_read >= BATCHED_KEYS
        ):
            return _relative(q, held.view(2, kv_heads * rows, -1, head_dim), call.mask, scale)
        query = q.view(rows, kv_heads, group, head_dim)
        keys, values = held.view(2, kv_heads, rows, -1, head_dim).transpose(1, 2)
        logits = None if sinks is None else sinks.view(kv_heads, group)
        return _weighted(query, keys, values, call, scale, logits).reshape(q.shape)
    query = q.view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    keys, values = held.view(2, kv_heads, 1, -1, head_dim).expand(-1, -1, group, -1, -1)
    logits = None if sinks is None else sinks.view(kv_heads, group, 1)
    return _weighted(query, keys, values, call, scale, logits).permute(2, 0, 1, 3).reshape(q.shape)


def _relative(q: torch.Tensor, held: torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    """[sequences, heads, head_dim] of single queries by batched products, which round their results to bf16.

    The first product finds the largest score s', the second computes s - s' in float32 and rounds that: the
    error, 2^-9 |s - s'|, is weighted by e^(s - s') and so at most e^-1 2^-9, less than the weights' own.

    Args:
        held: [2, kv_heads * sequences, width, head_dim].
    """
    count, head_dim = q.shape[0], q.shape[2]
    kv_heads = held.shape[1] // count
    keys, values = held
    query = q.view(count, kv_heads, -1, head_dim).transpose(0, 1).reshape(held.shape[1], -1, head_dim)
    # A shorter sequence's padding repeats its last key, so the largest score is one of its own.
    largest = torch.bmm(query, keys.mT).amax(-1, keepdim=True)
    scores = torch.baddbmm(largest, query, keys.mT, beta=-scale, alpha=scale)
    if mask is not None:
        scores.view(kv_heads, count, -1, keys.shape[1]).add_(mask.view(count, 1, -1))
    mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
    return mixed.view(kv_heads, count, -1, head_dim).transpose(0, 1).reshape(q.shape)


def _weighted(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    call: Bucket,
    scale: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """[.., .., queries, head_dim]; sinks broadcast to [.., .., queries]."""
    if sinks is None:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=call.mask, is_causal=call.causal, scale=scale
        )
    if query.device.type != "cpu":
        return with_sinks(query, keys, values, call.mask, call.causal, scale, sinks)
    mixed: torch.Tensor
    level: torch.Tensor
    mixed, level = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, call.causal, attn_mask=call.mask, scale=scale
    )
    share = torch.sigmoid(level - sinks.to(level.dtype))
    return (mixed.to(level.dtype) * share.unsqueeze(-1)).to(query.dtype)


def with_sinks(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
    sinks: torch.Tensor,
) -> torch.Tensor:
    """The same without a kernel that returns the logarithm of the weights' sum: all scores at once."""
    scores = (query.float() @ keys.float().mT) * scale
    if mask is not None:
        scores += mask
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    level = scores.logsumexp(-1)
    weights = (scores - torch.logaddexp(level, sinks.float()).unsqueeze(-1)).exp()
    return (weights @ values.float()).to(query.dtype)

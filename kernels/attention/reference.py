"""Reference implementation of paged attention, one query at a time: the specification of every other one."""

from __future__ import annotations

import torch

from kernels.attention.plan import AttentionPlan


def attend(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Same arguments as `kernels.attention.attend`; computes in the dtype of `q`."""
    out = torch.empty_like(q)
    group = q.shape[1] // kv_pages.shape[1]
    row = 0
    for queries, context, pages in zip(plan.query_lens, plan.context_lens, plan.pages, strict=True):
        held = torch.tensor(pages[: -(-context // plan.page_size)], dtype=torch.int64, device=q.device)
        owned = kv_pages[:, :, held].flatten(2, 3)[:, :, :context]
        keys, values = owned.repeat_interleave(group, dim=1)
        for position in range(context - queries, context):
            first = max(0, position - window + 1) if window else 0
            visible = slice(first, position + 1)
            scores = torch.einsum("hd,hnd->hn", q[row], keys[:, visible]) * scale
            if sinks is not None:
                scores = torch.cat([scores, sinks.to(scores.dtype).unsqueeze(1)], dim=1)
            weights = scores.softmax(dim=1)[:, : position + 1 - first]
            out[row] = torch.einsum("hn,hnd->hd", weights, values[:, visible])
            row += 1
    return out

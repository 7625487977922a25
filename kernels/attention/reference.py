"""What paged attention means, one query at a time: the specification of every implementation."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def attend(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of each sequence's last `query_lens` tokens over its `context_lens` tokens.

    Args:
        q: [sum of query_lens, heads, head_dim].
        k_pages, v_pages: [pages, page_size, kv_heads, head_dim]; a kv head serves heads / kv_heads heads.
        block_table: int [sequences, most pages], the pages of each sequence in order.
        window: how many tokens back a query sees, itself included; 0 for all.
        sinks: [heads], a logit that takes part in the softmax and adds nothing.
    """
    out = torch.empty_like(q)
    group = q.shape[1] // k_pages.shape[2]
    row = 0
    for sequence, (queries, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        pages = block_table[sequence, : -(-context // k_pages.shape[1])].long()
        keys = k_pages[pages].flatten(0, 1)[:context].repeat_interleave(group, dim=1)
        values = v_pages[pages].flatten(0, 1)[:context].repeat_interleave(group, dim=1)
        for position in range(context - queries, context):
            first = max(0, position - window + 1) if window else 0
            seen = slice(first, position + 1)
            scores = torch.einsum("hd,nhd->hn", q[row], keys[seen]) * scale
            if sinks is not None:
                scores = torch.cat([scores, sinks.to(scores.dtype).unsqueeze(1)], dim=1)
            weights = scores.softmax(dim=1)[:, : position + 1 - first]
            out[row] = torch.einsum("hn,nhd->hd", weights, values[seen])
            row += 1
    return out

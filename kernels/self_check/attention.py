"""Checks of paged attention: decode rows, prefill chunks, every window of the model, captured launches."""

from __future__ import annotations

import torch

from kernels.attention import AttentionPlan, reference
from kernels.capture import captures_for
from kernels.self_check.shapes import ModelShapes, demand

MIXED = ((1, 33, 1, 20), (5, 33, 300, 90))
"""New tokens and context of each sequence."""
DECODE = ((1, 1, 1, 1), (1, 17, 700, 16))


def attention(shapes: ModelShapes, device: torch.device) -> None:
    from kernels.attention import gpu

    for lens in (MIXED, DECODE):
        for window in shapes.windows:
            q, kv_pages, plan = _batch(shapes, *lens)
            moved = AttentionPlan.build(*lens, plan.pages, page_size=plan.page_size, device=device)
            out = gpu.attend(q.to(device), kv_pages.to(device), moved, scale=_scale(shapes), window=window)
            _check("attend", out, q, kv_pages, plan, _scale(shapes), window)


def attention_graph(shapes: ModelShapes, device: torch.device) -> None:
    """Captured over one batch, replayed over another with longer contexts."""
    from kernels.attention import gpu
    from kernels.attention.worklist import Heads

    rows = len(DECODE[0])
    for window in shapes.windows:
        q, kv_pages, plan = _batch(shapes, *DECODE)
        heads = Heads(shapes.heads, shapes.kv_heads, shapes.head_dim, q.element_size())
        most = max(map(len, plan.pages)) * plan.page_size
        capacity = gpu.Capacity.of_decode(heads, rows=rows, max_context=most, page_size=plan.page_size)
        graph = gpu.GraphPlan(heads, capacity, window=window, device=device)
        graph.load(_batch(shapes, (1,) * rows, (1,) * rows)[2])
        held, pages = q.to(device), kv_pages.to(device)

        def step(
            held: torch.Tensor = held, pages: torch.Tensor = pages, graph: gpu.GraphPlan = graph
        ) -> torch.Tensor:
            out = torch.full_like(held, float("nan"))
            gpu.attend_graph(out, held, pages, graph, scale=_scale(shapes))
            return out

        out, replay = captures_for(device).capture(step)
        graph.load(plan)
        replay()
        _check("attend_graph", out, q, kv_pages, plan, _scale(shapes), window)


def _scale(shapes: ModelShapes) -> float:
    return float(shapes.head_dim**-0.5)


def _batch(
    shapes: ModelShapes, query_lens: tuple[int, ...], context_lens: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor, AttentionPlan]:
    """Queries, pages in no order with NaN where no sequence's token lies, and the plan, on the host."""
    size, dtype = shapes.page_size, shapes.torch_dtype
    counts = [-(-context // size) for context in context_lens]
    order = torch.randperm(sum(counts) + 1).tolist()
    kv_pages = torch.full((2, shapes.kv_heads, len(order), size, shapes.head_dim), float("nan"), dtype=dtype)
    pages = []
    for context, count in zip(context_lens, counts, strict=True):
        pages.append([order.pop() for _ in range(count)])
        for index, page in enumerate(pages[-1]):
            filled = min(size, context - index * size)
            kv_pages[:, :, page, :filled] = torch.randn(2, shapes.kv_heads, filled, shapes.head_dim).to(dtype)
    q = torch.randn(sum(query_lens), shapes.heads, shapes.head_dim).to(dtype)
    return q, kv_pages, AttentionPlan.build(query_lens, context_lens, pages, page_size=size)


def _check(
    name: str,
    ours: torch.Tensor,
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    plan: AttentionPlan,
    scale: float,
    window: int,
) -> None:
    exact = reference.attend(q.double(), kv_pages.double(), plan, scale=scale, window=window)
    theirs = reference.attend(q, kv_pages, plan, scale=scale, window=window)
    demand(f"{name}, window {window}", ours, theirs, exact, float(exact.abs().max()))

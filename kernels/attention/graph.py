"""Attention of captured decode steps: tensors with fixed addresses, reloaded before each replay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kernels import selection
from kernels.attention import cpu
from kernels.attention.worklist import Heads

if TYPE_CHECKING:
    from kernels.attention.gpu import GraphPlan
    from kernels.attention.plan import AttentionPlan


class GraphAttention:
    """Attention inputs of one captured step with `rows` sequences of one new token each.

    Attributes:
        slots: int64 [rows], as in `AttentionPlan`.
    """

    def __init__(self, first: AttentionPlan, *, max_context: int) -> None:
        """`first` is the batch at capture; later ones have the same number of rows."""
        self.slots = first.slots.clone()
        self._plan, self._max_context = first, max_context
        self._graphs: dict[tuple[Heads, int], GraphPlan] = {}

    def load(self, plan: AttentionPlan) -> None:
        """Load a batch, which later replays read.

        Raises:
            ValueError: it has another number of rows, or does not fit; the previous one may be half replaced.
        """
        if plan.rows != len(self.slots) or plan.rows != len(plan.query_lens):
            raise ValueError(
                f"plan has {plan.rows} rows of {len(plan.query_lens)} sequences; expected {len(self.slots)} "
                "sequences of one row, as at capture"
            )
        for graph in self._graphs.values():
            graph.load(plan)
        self.slots.copy_(plan.slots)
        self._plan = plan

    def attend(
        self,
        q: torch.Tensor,
        kv_pages: torch.Tensor,
        *,
        scale: float,
        window: int,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """`kernels.attention.attend` on the batch loaded when it runs, directly or in a replay."""
        if not selection.runs("attention_graph", q):
            return cpu.attend(q, kv_pages, self._plan, scale=scale, window=window, sinks=sinks)
        from kernels.attention import gpu

        heads = Heads(q.shape[1], kv_pages.shape[1], q.shape[2], q.element_size())
        graph = self._graphs.get((heads, window))
        if graph is None:
            size = self._plan.page_size
            room = gpu.Capacity.of_decode(
                heads, rows=q.shape[0], max_context=self._max_context, page_size=size
            )
            graph = gpu.GraphPlan(heads, room, window=window, device=q.device)
            graph.load(self._plan)
            self._graphs[heads, window] = graph
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        gpu.attend_graph(out, q, kv_pages, graph, scale=scale, sinks=sinks)
        return out


def capture_plan(plan: AttentionPlan, *, max_context: int) -> AttentionPlan:
    """Return `plan` for a captured step. Batches with equally many rows are loaded into its `graph` later."""
    graph = GraphAttention(plan, max_context=max_context)
    return replace(plan, slots=graph.slots, kept={}, graph=graph)

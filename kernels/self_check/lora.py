"""Checks of multi-LoRA: every linear layer's shape, segments of one, few and many rows, captured launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.capture import captures_for
from kernels.lora import LoraPair, LoraWeights, Owners, Segments, concatenate, reference
from kernels.lora.rank_rows import RankRows
from kernels.lora.tile import tile_for
from kernels.self_check.shapes import ModelShapes, demand

RANKS = (16, 8, 64)
MIXED = [0, -1, 2, 2, 2] + [1] * 18
"""Segments of one, few and many rows, which use different kernels."""
DECODE = [2, -1, 0, 1]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Random adapters of one linear layer, on the host."""

    pairs: list[list[LoraPair | None]]
    inner: int
    widths: tuple[int, ...]

    @classmethod
    def random(cls, inner: int, widths: tuple[int, ...], dtype: torch.dtype) -> _Layer:
        pairs: list[list[LoraPair | None]] = [
            [
                LoraPair(
                    (torch.randn(rank, inner) / inner**0.5).to(dtype), torch.randn(rank, width).to(dtype)
                )
                for rank in RANKS
            ]
            for width in widths
        ]
        return cls(pairs, inner, widths)

    def on(self, device: torch.device) -> LoraWeights:
        held = [[p and LoraPair(p.a.to(device), p.b.to(device)) for p in row] for row in self.pairs]
        weights = concatenate(held, self.widths, Owners(device))
        if weights is None:
            raise ValueError(f"ranks {RANKS} gave no weights; expected some above 0")
        return weights

    def check(
        self,
        name: str,
        ours: torch.Tensor,
        out: torch.Tensor,
        x: torch.Tensor,
        row_adapter: Sequence[int],
        gain: torch.Tensor | None = None,
    ) -> None:
        """Compare `ours` with the reference. `out` is the base output before the adapters were added."""

        def specified(dtype: torch.dtype, power: int = 1) -> torch.Tensor:
            pairs = [
                [p and LoraPair(p.a.to(dtype) ** power, p.b.to(dtype) ** power) for p in row]
                for row in self.pairs
            ]
            arguments = (out.to(dtype) ** power, x.to(dtype) ** power, pairs, self.widths, row_adapter)
            own = None if gain is None else gain.to(dtype) ** power
            return reference.apply_lora(*arguments, gain=own)

        # The scale of rounding errors without cancellation: the root of the sum of the terms' squares.
        floor = float(specified(torch.float64, 2).max().sqrt())
        demand(name, ours, specified(ours.dtype), specified(torch.float64), floor)


def lora(shapes: ModelShapes, device: torch.device) -> None:
    """Check both launches, DoRA's gain, and the look-up of embeddings."""
    from kernels.lora import gpu

    dtype = shapes.torch_dtype
    for inner, widths in shapes.linears:
        layer = _Layer.random(inner, widths, dtype)
        weights = layer.on(device)
        for row_adapter in (MIXED, DECODE):
            for gain in (None, torch.rand(len(RANKS), sum(widths)) + 0.5):
                x = torch.randn(len(row_adapter), inner).to(dtype)
                out = torch.randn(len(row_adapter), sum(widths)).to(dtype)
                ours = out.to(device, copy=True)
                own = None if gain is None else gain.to(device)
                gpu.apply_lora(ours, x.to(device), weights, Segments.group(row_adapter, device), gain=own)
                layer.check(f"apply_lora {inner} to {list(widths)}", ours, out, x, row_adapter, gain)
    vocabulary = 64
    layer = _Layer.random(vocabulary, (shapes.hidden,), dtype)
    tokens = torch.randint(vocabulary, (len(MIXED),))
    out = torch.randn(len(MIXED), shapes.hidden).to(dtype)
    ours = out.to(device, copy=True)
    gpu.embed_lora(ours, tokens.to(device), layer.on(device), Segments.group(MIXED, device))
    layer.check("embed_lora", ours, out, torch.eye(vocabulary).to(dtype)[tokens], MIXED)


def lora_graph(shapes: ModelShapes, device: torch.device) -> None:
    """Check launches captured with an empty batch and replayed with others."""
    from kernels.lora import gpu
    from kernels.lora.plan import Capacity, GraphPlan

    dtype = shapes.torch_dtype
    for inner, widths in shapes.linears:
        layer = _Layer.random(inner, widths, dtype)
        rows = RankRows.stacked(layer.on(device))
        tile = tile_for(1, rows.memory.element_size())
        plan = GraphPlan(
            rows,
            tile,
            Capacity.for_rows(rows.columns, inner, tile, rows=len(MIXED), ranks=max(RANKS) * len(widths)),
        )
        base = torch.zeros(len(MIXED), sum(widths), dtype=dtype, device=device)
        x_held = torch.zeros(len(MIXED), inner, dtype=dtype, device=device)

        def step(
            base: torch.Tensor = base, x: torch.Tensor = x_held, plan: GraphPlan = plan, rows: RankRows = rows
        ) -> torch.Tensor:
            out = base.clone()
            gpu.run_graph(out, x, rows, plan)
            return out

        result, replay = captures_for(device).capture(step)
        for row_adapter in (MIXED, [-1] * len(MIXED), DECODE + [-1] * (len(MIXED) - len(DECODE))):
            x = torch.randn(len(MIXED), inner).to(dtype)
            out = torch.randn(len(MIXED), sum(widths)).to(dtype)
            x_held.copy_(x)
            base.copy_(out)
            plan.load(row_adapter, rows)
            replay()
            layer.check(f"run_graph {inner} to {list(widths)}", result, out, x, row_adapter)

"""Random multi-LoRA batches and what their results may differ by.

Our error in a dtype may be twice that of the row-by-row reference in the same dtype, since a different order
of summation is as likely to be worse as better; two steps of values near one allow for small cases, in which
the reference may be exact by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.lora import LoraPair, LoraWeights, Owners, Segments, apply_lora, concatenate, reference

Pairs = list[list[LoraPair | None]]
DTYPES = [torch.float32, torch.bfloat16]


@dataclass(frozen=True)
class Case:
    """Random pairs, by slice and adapter (None where holes are asked for), and a batch over them."""

    pairs: Pairs
    widths: Sequence[int]
    rows: list[int]
    x: torch.Tensor
    base: torch.Tensor

    @classmethod
    def random(
        cls,
        widths: Sequence[int],
        inner: int,
        ranks: Sequence[int],
        rows: list[int],
        dtype: torch.dtype,
        *,
        holes: bool = False,
    ) -> Case:
        draw = torch.Generator().manual_seed(5)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=draw)

        def pair(rank: int, width: int) -> LoraPair:
            a, b = normal(rank, inner) / math.sqrt(inner), normal(rank, width) / math.sqrt(max(rank, 1))
            return LoraPair(a.to(dtype), b.to(dtype))

        pairs: Pairs = [
            [None if holes and (i + j) % 3 == 1 else pair(rank, width) for j, rank in enumerate(ranks)]
            for i, width in enumerate(widths)
        ]
        x, base = normal(len(rows), inner).to(dtype), normal(len(rows), sum(widths)).to(dtype)
        return cls(pairs, widths, rows, x, base)

    @property
    def weights(self) -> LoraWeights:
        weights = concatenate(self.pairs, self.widths, Owners())
        assert weights is not None
        return weights

    def run(self, **dora: Any) -> torch.Tensor:
        out = self.base.clone()
        apply_lora(out, self.x, self.weights, Segments.group(self.rows), **dora)
        return out

    def check(self, out: torch.Tensor, **dora: Any) -> None:
        wide = {name: tensor.double() for name, tensor in dora.items()}
        arguments = (self.widths, self.rows)
        exact = reference.apply_lora(
            self.base.double(), self.x.double(), widen(self.pairs), *arguments, **wide
        )
        plain = reference.apply_lora(self.base, self.x, self.pairs, *arguments, **dora)
        within_twice(out, plain, exact)
        untouched = torch.tensor(self.rows) < 0
        assert torch.equal(out[untouched], self.base[untouched])


def widen(pairs: Sequence[Sequence[LoraPair | None]]) -> Pairs:
    return [[pair and LoraPair(pair.a.double(), pair.b.double()) for pair in row] for row in pairs]


def within_twice(ours: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor) -> None:
    assert ours.isfinite().all()
    step = 2 * torch.finfo(ours.dtype).eps * max(float(exact.abs().max()), 1.0)
    error, allowed = (ours.double() - exact).abs().max(), (plain.double() - exact).abs().max()
    assert error <= 2 * allowed + step

"""Random weights and batches for the tests of the multi-LoRA kernels, and what results may err by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.lora import LoraPair, LoraWeights, Owners, concatenate, reference
from kernels.lora.plan import Plan


@dataclass
class Case:
    """Random weights of every slice and adapter, and a batch over them."""

    pairs: list[list[LoraPair | None]]
    widths: list[int]
    x: torch.Tensor
    out: torch.Tensor
    row_adapter: list[int]

    @classmethod
    def random(
        cls,
        ranks: Sequence[int],
        widths: Sequence[int],
        inner: int,
        row_adapter: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> Case:
        torch.manual_seed(len(ranks) * 1000 + inner)
        pairs: list[list[LoraPair | None]] = [
            [
                LoraPair((torch.randn(r, inner) / inner**0.5).to(dtype), torch.randn(r, width).to(dtype))
                if r
                else None
                for r in ranks
            ]
            for width in widths
        ]
        x = torch.randn(len(row_adapter), inner).to(dtype)
        return cls(
            pairs, list(widths), x, torch.randn(len(row_adapter), sum(widths)).to(dtype), list(row_adapter)
        )

    @property
    def weights(self) -> LoraWeights:
        weights = concatenate(self.pairs, self.widths, Owners())
        assert weights is not None
        return weights

    def expected(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        pairs = [[p and LoraPair(p.a.to(dtype), p.b.to(dtype)) for p in row] for row in self.pairs]
        return reference.apply_lora(
            self.out.to(dtype), self.x.to(dtype), pairs, self.widths, self.row_adapter
        )

    def magnitude(self) -> float:
        """Size of a sum of the same terms without lucky cancellation: the root of the sum of squares."""
        squares = [[p and LoraPair(p.a.double() ** 2, p.b.double() ** 2) for p in row] for row in self.pairs]
        return float(
            reference.apply_lora(
                self.out.double() ** 2, self.x.double() ** 2, squares, self.widths, self.row_adapter
            )
            .max()
            .sqrt()
        )

    def check(self, result: torch.Tensor) -> None:
        expected = self.expected()
        error = (result.double() - expected).abs().max()
        torch_error = (self.expected(self.x.dtype).double() - expected).abs().max()
        assert error <= 2 * torch_error + torch.finfo(self.x.dtype).eps * self.magnitude()
        for row, adapter in enumerate(self.row_adapter):
            if adapter < 0:
                assert torch.equal(result[row], self.out[row])


def poison(plan: Plan) -> Plan:
    """Fill the intermediate results with NaN, so that a read before the write shows."""
    for part in plan.parts:
        part.shrunk.fill_(float("nan"))
    return plan

"""A linear layer's weights as whole numbers: what every format on disk is brought to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self

import torch

Coding = Literal["whole", "e4m3", "e2m1"]
"""What codes are: whole numbers; OCP's floats of 8 bits; its floats of 4 bits, as MXFP4 has them."""
E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""By the lower three bits of a code; the fourth is the sign."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """w[o, i] = (codes[o, i] - zeros[o, i // group]) * scales[o, i // group].

    Attributes:
        codes: [out, in], uint8 of 0 to 15 (4 bits; codes of 3 bits are held so, too) or int8 (8 bits);
            float8_e4m3fn where coding is e4m3, and of e2m1 uint8 of 0 to 15 that stand for floats.
        scales: [out, groups], bf16, fp16 or fp32.
        zeros: uint8 [out, groups] of 0 to 15; None where each is 8 (4 bits) or 0 (8 bits), and of floats.
        bits: 4 or 8.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    coding: Coding = "whole"

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def group(self) -> int:
        """Inputs that share a scale; all of them, where scales are by channel."""
        return self.codes.shape[1] // self.scales.shape[1]

    def dequantize(self) -> torch.Tensor:
        """float32 [out, in], exact for scales of 16 bits."""
        out, inner = self.shape
        codes = self._plain().view(out, -1, self.group)
        if self.zeros is not None:
            codes -= self.zeros.float()[..., None]
        elif self.bits == 4 and self.coding == "whole":
            codes -= 8
        return codes.mul_(self.scales.float()[..., None]).view(out, inner)

    def _plain(self) -> torch.Tensor:
        if self.coding != "e2m1":
            return self.codes.float()
        table = torch.tensor([*E2M1, *(-value for value in E2M1)], device=self.codes.device)
        return table[self.codes.int()]

    @classmethod
    def stack(cls, parts: list[Self]) -> Self:
        """One below the other; all of the same bits, group and kind of zeros."""
        first = parts[0]
        zeros = [part.zeros for part in parts if part.zeros is not None]
        return cls(
            torch.cat([part.codes for part in parts]),
            torch.cat([part.scales for part in parts]),
            torch.cat(zeros) if zeros else None,
            first.bits,
            first.coding,
        )

    def stacks_with(self, other: QuantizedWeight) -> bool:
        return (self.bits, self.coding, self.group, self.zeros is None, self.codes.shape[1]) == (
            other.bits,
            other.coding,
            other.group,
            other.zeros is None,
            other.codes.shape[1],
        )

"""4-bit weights as the Triton kernels read them: words of eight inputs, neighbouring outputs side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from kernels.quantization.weight import Coding, QuantizedWeight

GROUPS: Final = (32, 64, 128)
"""Inputs that share a scale, of 4 bits; of 8 bits all of a channel's do."""
_NIBBLES: Final = 8


@dataclass(frozen=True, slots=True)
class DeviceMatrix:
    """One layer's weights.

    Attributes:
        codes: int32 [in / 8, out], the n-th nibble from below of input 8 i + n. scales: [groups, out].
        zeros: uint8 [groups, out], or None where each is 8, and of floats.
        floats: whether codes are E2M1's.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    floats: bool = False

    @staticmethod
    def serves(weight: QuantizedWeight) -> bool:
        """Whether the kernels multiply this weight as it is."""
        return weight.bits == 4 and weight.group in GROUPS

    @classmethod
    def of(cls, weight: QuantizedWeight, device: torch.device) -> DeviceMatrix:
        """Moved, and laid out there. Raises ValueError where `serves` is false of it."""
        if not cls.serves(weight):
            raise ValueError(
                f"weights of {weight.bits} bits in groups of {weight.group}: the kernel takes 4 bits in "
                "groups of 32, 64 or 128"
            )
        out, inner = weight.shape
        parts = weight.codes.to(device).T.reshape(inner // _NIBBLES, _NIBBLES, out)
        words = torch.zeros(inner // _NIBBLES, out, dtype=torch.int32, device=device)
        for place in range(_NIBBLES):
            words |= parts[:, place].int() << (4 * place)
        zeros = None if weight.zeros is None else weight.zeros.to(device).T.contiguous()
        return cls(words, weight.scales.to(device).T.contiguous(), zeros, weight.coding == "e2m1")

    @property
    def inner(self) -> int:
        return _NIBBLES * self.codes.shape[0]

    @property
    def columns(self) -> int:
        return self.codes.shape[1]

    @property
    def group(self) -> int:
        return self.inner // self.scales.shape[0]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.codes, self.scales, self.zeros) if part is not None)

    def weight(self) -> QuantizedWeight:
        """What `of` was given, where this lies."""
        shifts = torch.arange(0, 4 * _NIBBLES, 4, dtype=torch.int32, device=self.codes.device)
        nibbles = (self.codes[:, None, :] >> shifts[None, :, None]) & 15
        codes = nibbles.to(torch.uint8).flatten(0, 1).T.contiguous()
        zeros = None if self.zeros is None else self.zeros.T.contiguous()
        coding: Coding = "e2m1" if self.floats else "whole"
        return QuantizedWeight(codes, self.scales.T.contiguous(), zeros, 4, coding)

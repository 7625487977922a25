"""4-bit weights in the Triton kernels' layout: words of eight inputs, with adjacent outputs contiguous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from kernels.quantization.weight import Coding, QuantizedWeight

GROUPS: Final = (32, 64, 128)
"""Inputs that share a scale, for 4 bits; for 8 bits a whole channel does."""
_NIBBLES: Final = 8


@dataclass(frozen=True, slots=True)
class DeviceMatrix:
    """One layer's weights.

    Attributes:
        codes: int32 [in / 8, out]; the n-th lowest nibble belongs to input 8 i + n.
        scales: [groups, out].
        zeros: uint8 [groups, out]; None where each is 8, and for floats.
        floats: True if codes are E2M1's.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    floats: bool = False

    @staticmethod
    def serves(weight: QuantizedWeight) -> bool:
        """Return True if the kernels multiply this weight without dequantizing it."""
        return weight.bits == 4 and weight.group in GROUPS

    @classmethod
    def pack(cls, weight: QuantizedWeight, device: torch.device) -> DeviceMatrix:
        """Copy a weight to the device and lay it out. Raises ValueError where `serves` is False for it."""
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
        """Return the weight that `pack` laid out, on this matrix's device."""
        shifts = torch.arange(0, 4 * _NIBBLES, 4, dtype=torch.int32, device=self.codes.device)
        nibbles = (self.codes[:, None, :] >> shifts[None, :, None]) & 15
        codes = nibbles.to(torch.uint8).flatten(0, 1).T.contiguous()
        zeros = None if self.zeros is None else self.zeros.T.contiguous()
        coding: Coding = "e2m1" if self.floats else "whole"
        return QuantizedWeight(codes, self.scales.T.contiguous(), zeros, 4, coding)

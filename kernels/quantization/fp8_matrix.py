"""E4M3 weights with one scale per channel, in the FP8 kernels' layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from kernels.quantization.weight import QuantizedWeight

CAPABILITY: Final = (8, 9)
"""Lowest compute capability whose tensor cores multiply E4M3."""


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """One layer's weights.

    Attributes:
        codes: float8_e4m3fn [out, in].
        scales: float32 [out].
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def serves(weight: QuantizedWeight, device: torch.device) -> bool:
        """Return True if the kernels multiply this weight on this device."""
        if weight.coding != "e4m3" or weight.scales.shape[1] != 1:
            return False
        return device.type != "cuda" or torch.cuda.get_device_capability(device) >= CAPABILITY

    @classmethod
    def pack(cls, weight: QuantizedWeight, device: torch.device) -> Fp8Matrix:
        """Copy a weight to the device. Raises ValueError for another coding, or scales that are not per
        channel.
        """
        if weight.coding != "e4m3" or weight.scales.shape[1] != 1:
            raise ValueError(f"weights of coding {weight.coding!r}: expected 'e4m3' with a scale a channel")
        return cls(weight.codes.to(device).contiguous(), weight.scales[:, 0].float().to(device).contiguous())

    @property
    def inner(self) -> int:
        return self.codes.shape[1]

    @property
    def columns(self) -> int:
        return self.codes.shape[0]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def weight(self) -> QuantizedWeight:
        """Return the weight that `pack` copied, on this matrix's device."""
        return QuantizedWeight(self.codes, self.scales[:, None], None, 8, "e4m3")

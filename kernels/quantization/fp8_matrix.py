"""Weights in E4M3 with a scale a channel, as the FP8 kernels read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from kernels.quantization.weight import QuantizedWeight

CAPABILITY: Final = (8, 9)
"""Whose tensor cores multiply E4M3, and later ones."""


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """One layer's weights.

    Attributes:
        codes: float8_e4m3fn [out, in]. scales: float32 [out].
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def serves(weight: QuantizedWeight, device: torch.device) -> bool:
        """Whether the kernels multiply this weight on this device."""
        if weight.coding != "e4m3" or weight.scales.shape[1] != 1:
            return False
        return device.type != "cuda" or torch.cuda.get_device_capability(device) >= CAPABILITY

    @classmethod
    def of(cls, weight: QuantizedWeight, device: torch.device) -> Fp8Matrix:
        """Moved. Raises ValueError for another coding, or scales that are not by channel."""
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
        """What `of` was given, where this lies."""
        return QuantizedWeight(self.codes, self.scales[:, None], None, 8, "e4m3")

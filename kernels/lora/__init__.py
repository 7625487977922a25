"""Multi-LoRA: y += (x A^T) B, each row of the batch with its own adapter or none.

`apply_lora` is the public operation. `reference.py` says what it means, one row at a time; an
implementation for a device is one module with the same signature as `cpu.apply_lora`, chosen here.
"""

from __future__ import annotations

from kernels.lora.cpu import apply_lora
from kernels.lora.segments import Segments
from kernels.lora.weights import LoraPair, LoraWeights, Owners, concatenate

__all__ = ["LoraPair", "LoraWeights", "Owners", "Segments", "apply_lora", "concatenate"]

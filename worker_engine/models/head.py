"""The language model head: as it is stored, or rounded to 8 bits when it is loaded."""

from __future__ import annotations

from typing import Final

import torch

from kernels.quantization import QuantizedWeight, prepare
from kernels.quantization.quantize import round_to_nearest
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.layers.linear_weight import LinearWeight, pack, packed_weight
from worker_engine.models.linear_loader import mapped_weight, store

_SLICE: Final = 8192
"""Rows rounded at a time: as floats a vocabulary's would be some gigabytes."""


def rounded_head(weight: torch.Tensor) -> QuantizedWeight:
    """Round [vocabulary, hidden] to int8 codes and a bf16 scale a token, symmetric, on the CPU."""
    inner = weight.shape[1]
    return QuantizedWeight.stack(
        [
            round_to_nearest(part.float().cpu(), bits=8, group=inner, zeros=False)
            for part in torch.split(weight, _SLICE)
        ]
    )


def load_int8_head(
    checkpoint: Checkpoint, name: str, source: str, size: tuple[int, int], weight: torch.Tensor | None
) -> LinearWeight:
    """Return the head of a stored matrix [vocabulary, hidden], in 8 bits.

    Where 8 bits cannot be multiplied, they are dequantized, so the model is the same on every machine.

    Args:
        name: key of the packed weights.
        source: the tensor, which is the embedding's where the two are tied.
        weight: the tensor where it was read already.
    """
    native = checkpoint.multiplies_quantized and checkpoint.device.type == "cpu"
    if native and (mapped := mapped_weight(checkpoint, name, 8, [(source, size)])) is not None:
        return mapped
    codes = rounded_head(checkpoint.get(source, *size) if weight is None else weight)
    matrix = prepare(codes, checkpoint.dtype, checkpoint.device)
    if matrix is None:
        return pack(codes.dequantize().to(checkpoint.device, checkpoint.dtype))
    return store(checkpoint, name, packed_weight(matrix))

"""The language model head: as it is stored, or rounded to 8 bits when it is loaded."""

from __future__ import annotations

from typing import Final

import torch

from kernels.native.matrix import NativeMatrix
from kernels.quantization import QuantizedWeight, prepare
from kernels.quantization.quantize import round_to_nearest
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.layers.linear import PackedLinear

_SLICE: Final = 8192
"""Rows rounded at a time: as floats a vocabulary's would be some gigabytes."""


def rounded_head(weight: torch.Tensor) -> QuantizedWeight:
    """[vocabulary, hidden] -> int8 codes and a bf16 scale a token, on the CPU: symmetric, to the nearest."""
    inner = weight.shape[1]
    return QuantizedWeight.stack([
        round_to_nearest(part.float().cpu(), bits=8, group=inner, zeros=False)
        for part in torch.split(weight, _SLICE)
    ])  # fmt: skip


def load_int8_head(
    checkpoint: Checkpoint, name: str, source: str, size: tuple[int, int], weight: torch.Tensor | None
) -> PackedLinear:
    """The head of a stored matrix [vocabulary, hidden], in 8 bits.

    Where 8 bits are not multiplied as they are, they are made whole: the model is the same on every machine.

    Args:
        name: what the packed weights are kept as.
        source: the tensor, which is the embedding's where the two are tied.
        weight: the tensor where it was read already.
    """
    native = checkpoint.multiplies_quantized and checkpoint.device.type == "cpu"
    if native and (kept := checkpoint.packed.take_matrix(name, 8, *size)) is not None:
        checkpoint.pass_over(source, *size)
        return PackedLinear.of_matrix(kept)
    codes = rounded_head(checkpoint.get(source, *size) if weight is None else weight)
    matrix = prepare(codes, checkpoint.dtype, checkpoint.device)
    if matrix is None:
        return PackedLinear(codes.dequantize().to(checkpoint.device, checkpoint.dtype))
    if isinstance(matrix, NativeMatrix):
        checkpoint.packed.keep_matrix(name, matrix)
    return PackedLinear.of_matrix(matrix)

"""Loads the weights of linear layers from a checkpoint, or from the file of weights packed earlier."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.quantization import QuantizedWeight, prepare
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.layers.linear_weight import LinearWeight, pack, packed_weight

Part = tuple[str, tuple[int, int]]
"""A tensor's name and shape (out, in)."""


def load_weight(checkpoint: Checkpoint, name: str, parts: Sequence[Part]) -> LinearWeight:
    """Return the stack of the named tensors [out, in], packed earlier or now.

    Tensors with one quantization scheme stay quantized where the native loops or the kernels multiply them.
    Others are dequantized.

    Args:
        name: key of the packed weights.
    """
    weight = _load_quantized(checkpoint, name, parts) or mapped_weight(checkpoint, name, 16, parts)
    if weight is not None:
        return weight
    dense = torch.cat([checkpoint.get(tensor, *shape) for tensor, shape in parts])
    return store(checkpoint, name, pack(dense))


def mapped_weight(checkpoint: Checkpoint, name: str, bits: int, parts: Sequence[Part]) -> LinearWeight | None:
    """Return the stack of the named tensors as packed earlier in `bits` bits; None if it was not."""
    out, inner = sum(shape[0] for _, shape in parts), parts[0][1][1]
    matrix = checkpoint.packed.take(name, bits, out, inner)
    if matrix is None:
        return None
    for tensor, shape in parts:
        checkpoint.pass_over(tensor, *shape)
    return packed_weight(matrix)


def store(checkpoint: Checkpoint, name: str, weight: LinearWeight) -> LinearWeight:
    """Return the weight, after adding it to the file of packed weights if the native loops read it."""
    if weight.matrix is not None:
        checkpoint.packed.keep(name, weight.matrix)
    return weight


def _load_quantized(checkpoint: Checkpoint, name: str, parts: Sequence[Part]) -> LinearWeight | None:
    """Return the stacked quantized weights; None unless all share a scheme that is multiplied directly."""
    schemes = {checkpoint.scheme(tensor) for tensor, _ in parts}
    scheme = schemes.pop()
    if scheme is None or schemes or not checkpoint.multiplies_quantized:
        return None
    if (mapped := mapped_weight(checkpoint, name, scheme.native_bits, parts)) is not None:
        return mapped
    weights = [checkpoint.quantized(tensor, *shape) for tensor, shape in parts]
    if any(not weights[0].stacks_with(weight) for weight in weights):
        return None
    matrix = prepare(QuantizedWeight.stack(weights), checkpoint.dtype, checkpoint.device)
    return None if matrix is None else store(checkpoint, name, packed_weight(matrix))

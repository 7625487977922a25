"""Weights of linear layers: one class for each layout that a device multiplies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from kernels import native
from kernels.native.matrix import NativeMatrix
from kernels.quantization import DeviceMatrix, Fp8Matrix, Matrix
from kernels.quantization import cpu as quantized
from kernels.quantization import linear as quantized_linear

PACK_BATCH_HINT: Final = 8
"""Row count for which oneDNN lays out packed weights; decode batches are near it."""


class LinearWeight(ABC):
    """Weights [out, in] in one layout, with the code that multiplies them.

    Attributes:
        matrix: the weights for the native loops; None in a layout that the loops cannot read.
    """

    matrix: NativeMatrix | None = None

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the weights [out, in] bit for bit; quantized ones are dequantized and rounded to bf16."""

    @abstractmethod
    def multiply(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        """Map [rows, in] to `x W^T + bias + residual` [rows, out]."""


class DenseWeight(LinearWeight):
    """PyTorch's own layout."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def dense(self) -> Tensor:
        return self._weight

    def multiply(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        y = linear(x, self._weight, bias)
        return y if residual is None else y.add_(residual)


class OneDnnWeight(LinearWeight):
    """oneDNN's blocks: 1.4-1.7 times as fast in decode steps as `F.linear`, which packs at each call."""

    def __init__(self, weight: Tensor) -> None:
        self._blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_BATCH_HINT)

    @staticmethod
    def serves(dtype: torch.dtype) -> bool:
        """Return True if oneDNN multiplies `dtype` on this CPU; 16-bit types need AVX-512 or newer."""
        if not torch._C._has_mkldnn:
            return False
        if dtype == torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        return dtype != torch.float16 or bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())

    def dense(self) -> Tensor:
        return cast(Tensor, self._blocks.to_dense())

    def multiply(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        if residual is None:
            y = torch.ops.mkldnn._linear_pointwise(x, self._blocks, bias, "none", [], "")
        else:
            y = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._blocks, bias, "add")
        return cast(Tensor, y)


class NativeWeight(LinearWeight):
    """bf16 in the blocks of `kernels.native`."""

    def __init__(self, matrix: NativeMatrix) -> None:
        self.matrix: NativeMatrix = matrix

    def dense(self) -> Tensor:
        return native.unpack(self.matrix.codes, self.matrix.columns)

    def multiply(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        return native.linear(x, self.matrix.codes, self.matrix.columns, bias, residual)


class NativeQuantizedWeight(LinearWeight):
    """4 or 8 bits in the blocks of `kernels.native`."""

    def __init__(self, matrix: NativeMatrix) -> None:
        self.matrix: NativeMatrix = matrix

    def dense(self) -> Tensor:
        return quantized.of_native(self.matrix).dequantize().bfloat16()

    def multiply(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        return quantized.multiply(x, self.matrix, bias, residual)


class TritonWeight(LinearWeight):
    """4 bits or FP8 in the layout of the Triton kernels."""

    def __init__(self, matrix: DeviceMatrix | Fp8Matrix) -> None:
        self.device_matrix = matrix

    def dense(self) -> Tensor:
        return self.device_matrix.weight().dequantize().bfloat16()

    def multiply(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        return quantized_linear(x, self.device_matrix, bias, residual)


def pack(weight: Tensor) -> LinearWeight:
    """Return weights [out, in] in the fastest layout for their dtype and device; the CPU's are copies."""
    if weight.device.type != "cpu":
        return DenseWeight(weight)
    if weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0 and native.LIBRARY is not None:
        return NativeWeight(NativeMatrix(native.pack(weight), None, None, 16, *weight.shape))
    return OneDnnWeight(weight) if OneDnnWeight.serves(weight.dtype) else DenseWeight(weight)


def packed_weight(matrix: Matrix) -> LinearWeight:
    """Return weights whose layout exists already, such as those of a mapped file."""
    if not isinstance(matrix, NativeMatrix):
        return TritonWeight(matrix)
    return NativeWeight(matrix) if matrix.bits == 16 else NativeQuantizedWeight(matrix)

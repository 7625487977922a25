"""Linear layers: packed base weights, with each row's adapter added on top."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self, cast

import torch
from torch.nn.functional import linear

from kernels import native
from kernels.lora import LoraWeights, Segments, apply_lora
from kernels.lora.graph import CapturedLora
from kernels.native.matrix import NativeMatrix
from kernels.quantization import DeviceMatrix, Fp8Matrix, Matrix
from kernels.quantization import cpu as quantized
from kernels.quantization import linear as quantized_linear

PACK_BATCH_HINT = 8
"""Row count for which oneDNN lays out packed weights; decode batches are near it."""


class PackedLinear:
    """y = x W^T + b with weights laid out once for the device.

    On CPU, bf16 weights use the blocks of `kernels.native` where it is compiled, others oneDNN's. At decode
    batch sizes this is 1.4-1.7 times as fast as `F.linear`, which packs the weights again on each call.

    Quantized weights stay quantized where native loops or kernels multiply them; elsewhere they were
    dequantized when they were read.

    Attributes:
        bias: [out], or None.
        matrix: the weights in the native loops' layout, if those are used.
        device_matrix: quantized weights in the Triton kernels' layout, if those are used.
        exchanges: how often any two layers swapped weights; callers that cache addresses compare it.
    """

    exchanges: ClassVar[int] = 0

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take weights [out, in]; on CPU the plain layout is not kept."""
        shape = weight.shape[0], weight.shape[1]
        on_cpu = weight.device.type == "cpu"
        fits = weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0
        self.matrix: NativeMatrix | None = None
        self.device_matrix: DeviceMatrix | Fp8Matrix | None = None
        self._mkldnn = False
        if on_cpu and fits and native.LIBRARY is not None:
            weight = native.pack(weight)
            self.matrix = NativeMatrix(weight, None, None, 16, *shape)
        elif on_cpu and _onednn_multiplies(weight.dtype):
            self._mkldnn = True
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_BATCH_HINT)
        self._weight, self.bias = weight, bias

    @classmethod
    def of_packed(cls, packed: torch.Tensor, out: int, bias: torch.Tensor | None = None) -> Self:
        """Build a layer from blocks that `kernels.native.pack` made of [out, in], such as those of a mapped
        file.
        """
        return cls.of_matrix(NativeMatrix(packed, None, None, 16, out, 2 * packed.shape[1]), bias)

    @classmethod
    def of_matrix(cls, matrix: Matrix, bias: torch.Tensor | None = None) -> Self:
        """Build a layer from weights in the layout of the native loops (any number of bits) or of the
        kernels.
        """
        linear = cls.__new__(cls)
        linear.matrix, linear.device_matrix = None, None
        if isinstance(matrix, NativeMatrix):
            linear.matrix = matrix
        else:
            linear.device_matrix = matrix
        linear._mkldnn, linear._weight, linear.bias = False, matrix.codes, bias
        return linear

    @property
    def weight(self) -> torch.Tensor:
        """The weights [out, in] as given, bit for bit; on CPU each access unpacks them.

        Quantized weights are dequantized and rounded to bf16.
        """
        if self.device_matrix is not None:
            return self.device_matrix.weight().dequantize().bfloat16()
        if self.matrix is not None:
            if self.matrix.bits != 16:
                return quantized.of_native(self.matrix).dequantize().bfloat16()
            return native.unpack(self._weight, self.matrix.columns)
        return self._weight.to_dense() if self._mkldnn else self._weight

    @property
    def packed(self) -> torch.Tensor | None:
        """bf16 weights in the native loops' blocks; None in any other layout."""
        return self._weight if self.matrix is not None and self.matrix.bits == 16 else None

    def exchange(self, other: PackedLinear) -> None:
        """Swap weights and biases with a layer of the same shape and dtype; no value is copied."""
        self._weight, other._weight = other._weight, self._weight
        self.matrix, other.matrix = other.matrix, self.matrix
        self.device_matrix, other.device_matrix = other.device_matrix, self.device_matrix
        self.bias, other.bias = other.bias, self.bias
        PackedLinear.exchanges += 1

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Map [rows, in] to [rows, out], plus `residual` [rows, out] when given."""
        if self.device_matrix is not None:
            return quantized_linear(x, self.device_matrix, self.bias, residual)
        if self.matrix is not None:
            if self.matrix.bits != 16:
                return quantized.multiply(x, self.matrix, self.bias, residual)
            return native.linear(x, self._weight, self.matrix.columns, self.bias, residual)
        if not self._mkldnn:
            y = linear(x, self._weight, self.bias)
            return y if residual is None else y.add_(residual)
        if residual is None:
            y = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        else:
            y = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self.bias, "add")
        return cast(torch.Tensor, y)


def _onednn_multiplies(dtype: torch.dtype) -> bool:
    """Return True if oneDNN multiplies `dtype` on this CPU; 16-bit types need AVX-512 or newer."""
    if not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype != torch.float16 or bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


@dataclass(frozen=True, slots=True)
class LinearLora:
    """The batch's adapters for one linear layer.

    Attributes:
        gain: float32 [adapters, out], from DoRA; see `kernels.lora.apply_lora`.
        bias: float32 [adapters, out], added to the output.
        captured: in a captured step, the buffers that stand for the batch loaded at each replay.
    """

    weights: LoraWeights | None
    gain: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    captured: CapturedLora | None = None

    @property
    def only_products(self) -> bool:
        """True if `weights` are the only change: no gain, bias or captured buffers."""
        return self.gain is None and self.bias is None and self.captured is None


LayerLora = dict[str, LinearLora | None]
"""The batch's adapters for one decoder layer, by name in `PACKED_MODULES`."""


class LoraLinear(PackedLinear):
    """A linear layer that may stack slices (q/k/v in one matrix) and apply an adapter per row."""

    def forward(
        self,
        x: torch.Tensor,
        lora: LinearLora | None,
        segments: Segments,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Map [rows, in] to [rows, out]; `lora` is None when no adapter of the batch changes this layer."""
        if lora is None or segments.empty:
            return self(x, residual)
        # DoRA's gain applies to the layer's output, not to the residual.
        late = residual is not None and lora.gain is not None
        y = self(x, None if late else residual)
        if lora.captured is not None:
            lora.captured.apply(y, x)
        if lora.weights is not None:
            apply_lora(y, x, lora.weights, segments, gain=lora.gain, bias=self.bias)
        if lora.bias is not None:
            rows = (segments.row_adapter >= 0).nonzero().squeeze(1)
            y[rows] = (y[rows].float() + lora.bias[segments.row_adapter[rows]]).to(y.dtype)
        return y.add_(residual) if late and residual is not None else y

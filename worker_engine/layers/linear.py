"""Linear layers: packed weights for the base, and each row's adapter added on top."""

from __future__ import annotations

from typing import cast

import torch
from torch.nn.functional import linear

from kernels import native
from kernels.lora import LoraWeights, Segments, apply_lora

PACK_BATCH_HINT = 8
"""Rows that oneDNN lays packed weights out for; decode batches are near it."""


class PackedLinear:
    """y = x W^T + b on weights laid out once for the device.

    On CPU, bf16 weights take the blocks of `kernels.native` where that is compiled, others oneDNN's:
    at decode batch sizes they then stream from memory twice and 1.4-1.7 times as fast as through `F.linear`,
    which packs them anew on each call.

    Attributes:
        bias: [out], or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Takes [out, in]; on CPU the plain form is not kept."""
        self._out = weight.shape[0]
        on_cpu = weight.device.type == "cpu"
        fits = weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0
        self._native = on_cpu and fits and native.LIBRARY is not None
        self._mkldnn = on_cpu and not self._native and torch._C._has_mkldnn
        if self._native:
            weight = native.pack(weight)
        elif self._mkldnn:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_BATCH_HINT)
        self._weight, self.bias = weight, bias

    @property
    def weight(self) -> torch.Tensor:
        """[out, in] as it was given, bit for bit; on CPU unpacked anew by each call."""
        if self._native:
            return native.unpack(self._weight, self._out)
        return self._weight.to_dense() if self._mkldnn else self._weight

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, in] -> [rows, out], plus `residual` [rows, out] when given."""
        if self._native:
            return native.linear(x, self._weight, self._out, self.bias, residual)
        if not self._mkldnn:
            y = linear(x, self._weight, self.bias)
            return y if residual is None else y.add_(residual)
        if residual is None:
            y = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        else:
            y = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self.bias, "add")
        return cast(torch.Tensor, y)


class LoraLinear(PackedLinear):
    """A linear layer that may have slices (q/k/v in one matrix) and, per row, an adapter."""

    def forward(
        self,
        x: torch.Tensor,
        lora: LoraWeights | None,
        segments: Segments,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[rows, in] -> [rows, out]; `lora` None when no adapter of the batch changes this layer."""
        y = self(x, residual)
        if lora is not None and not segments.empty:
            apply_lora(y, x, lora, segments)
        return y

"""Linear layers: packed weights for the base, and each row's adapter added on top."""

from __future__ import annotations

from typing import cast

import torch
from torch.nn.functional import linear

from kernels.lora import LoraWeights, Segments, apply_lora

PACK_BATCH_HINT = 8
"""Rows that oneDNN lays packed weights out for; decode batches are near it."""


class PackedLinear:
    """y = x W^T + b on weights laid out once for the device.

    On CPU the weights are reordered into oneDNN's blocked form: at decode batch sizes they then stream
    from memory 1.4-1.7 times as fast as through `F.linear`, which packs them anew on each call.

    Attributes:
        bias: [out], or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Takes [out, in]; on CPU the plain form is not kept."""
        self._packed = weight.device.type == "cpu" and torch._C._has_mkldnn
        if self._packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_BATCH_HINT)
        self._weight, self.bias = weight, bias

    @property
    def weight(self) -> torch.Tensor:
        """[out, in] as it was given, bit for bit; on CPU unpacked anew by each call."""
        return self._weight.to_dense() if self._packed else self._weight

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, in] -> [rows, out], plus `residual` [rows, out] when given."""
        if not self._packed:
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

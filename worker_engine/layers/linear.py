"""Linear layers: packed base weights, with each row's adapter added on top."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch

from kernels.lora import LoraPair, LoraWeights, Owners, Segments, apply_lora, concatenate
from kernels.lora.graph import CapturedLora
from worker_engine.layers.linear_weight import LinearWeight


class PackedLinear:
    """y = x W^T + b with weights laid out once for the device.

    Quantized weights stay quantized where native loops or kernels multiply them; elsewhere they were
    dequantized when they were read.

    Attributes:
        packed: the weights [out, in].
        bias: [out], or None.
        exchanges: how often any two layers swapped weights; callers that cache addresses compare it.
    """

    exchanges: ClassVar[int] = 0

    def __init__(self, packed: LinearWeight, bias: torch.Tensor | None = None) -> None:
        self.packed, self.bias = packed, bias

    @property
    def weight(self) -> torch.Tensor:
        """The dense weights, see `LinearWeight.dense`; in most layouts each access converts them."""
        return self.packed.dense()

    def exchange(self, other: PackedLinear) -> None:
        """Swap weights and biases with a layer of the same shape and dtype; no value is copied."""
        self.packed, other.packed = other.packed, self.packed
        self.bias, other.bias = other.bias, self.bias
        PackedLinear.exchanges += 1

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Map [rows, in] to [rows, out], plus `residual` [rows, out] when given."""
        return self.packed.multiply(x, self.bias, residual)


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


class Float32Linear(LoraLinear):
    """A small layer that is computed in float32, its adapters included, whatever the model's dtype."""

    def forward(
        self,
        x: torch.Tensor,
        lora: LinearLora | None,
        segments: Segments,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Map [rows, in] to float32 [rows, out]."""
        if lora is not None and lora.weights is not None:
            lora = replace(lora, weights=_widened(lora.weights))
        return super().forward(x.float(), lora, segments, residual)


def _widened(weights: LoraWeights) -> LoraWeights:
    """Return the weights in float32, converted once for each batch of adapters."""
    layout = weights.layout
    if layout.dtype == torch.float32:
        return weights
    if "float32" not in weights.kept:
        pairs = [
            [None if pair is None else LoraPair(pair.a.float(), pair.b.float()) for pair in row]
            for row in weights.pairs
        ]
        widths = [columns.stop - columns.start for columns in layout.columns]
        weights.kept["float32"] = concatenate(pairs, widths, Owners())
    return cast(LoraWeights, weights.kept["float32"])

"""One decoder layer's tensors, quantized: with AWQ's scales folded into what stands before, or plainly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from kernels.quantization import QuantizedWeight
from kernels.quantization.formats import pack_columns, pack_dense, pack_rows
from kernels.quantization.quantize import round_to_nearest, to_e4m3
from optimizer.quantization import awq
from optimizer.quantization.compensation import compensated
from optimizer.quantization.moments import Moments
from optimizer.quantization.scheme import Scheme
from worker_engine.checkpoint.model_config import MODULE_PATHS, PACKED_MODULES, ModelConfig

Tensors = dict[str, torch.Tensor]
"""By name without the layer's prefix."""
MLP_NORMS: Final = ("pre_feedforward_layernorm.weight", "post_attention_layernorm.weight")
"""Which of a layer's norms the feed-forward reads: the first that it has."""


@dataclass(frozen=True, slots=True)
class LayerQuantizer:
    """How every layer of one model is quantized.

    Attributes:
        norm_offset: as in `RMSNorm`, of the layers' norms.
    """

    config: ModelConfig
    scheme: Scheme
    norm_offset: float

    def make(self, tensors: Tensors, moments: Mapping[str, Moments]) -> Tensors:
        """A layer's tensors in compressed-tensors' form; of 3 bits in GPTQ's.

        Args:
            tensors: the layer's; only those that change are read.
            moments: of the inputs of `PACKED_MODULES`' layers, where the scheme calibrates.
        """
        made = dict(tensors)
        scales = self._fold(made, moments) if self.scheme.calibrates else {}
        for packed, modules in PACKED_MODULES.items():
            second = None
            if packed in scales:
                second = moments[packed].second / (scales[packed][:, None] * scales[packed])
            for module in modules:
                name = MODULE_PATHS[module]
                plain = made.pop(f"{name}.weight")
                weight = self._round(module, plain.float(), second)
                parts = pack_gptq(weight) if self.scheme.bits == 3 else pack(weight)
                made |= {f"{name}.{part}": value for part, value in parts.items()}
        return made

    def _round(self, module: str, plain: torch.Tensor, second: torch.Tensor | None) -> QuantizedWeight:
        group = self._group(plain.shape[1])
        if self.scheme is Scheme.FP8:
            return to_e4m3(plain)
        if self.scheme is Scheme.INT8:
            return round_to_nearest(plain, bits=8, group=plain.shape[1], zeros=False)
        # Queries and keys meet in a product: a clipped end there costs more than its own error tells.
        if second is None:
            return round_to_nearest(plain, bits=4, group=group, zeros=True)
        if module in ("q_proj", "k_proj"):
            shrink = torch.ones(plain.shape[0], plain.shape[1] // group)
        else:
            shrink = awq.best_shrink(plain, second, group=group, bits=self.scheme.bits)
        dtype = self.scheme.dtype
        return compensated(plain, second, group=group, shrink=shrink, bits=self.scheme.bits, dtype=dtype)

    def _group(self, inner: int) -> int:
        if self.scheme.bits != 3:
            return self.scheme.group_size(inner)
        return self.scheme.common_group(inner for _, inner in self.config.linear_shapes.values())

    def _fold(self, made: Tensors, moments: Mapping[str, Moments]) -> dict[str, torch.Tensor]:
        """Multiplies weights, divides what stands before; by packed layer, what its inputs are divided by."""
        config = self.config
        heads = config.num_heads, config.num_kv_heads
        mlp_norm = next(name for name in MLP_NORMS if name in made)
        return {
            "qkv": self._fold_norm(made, "input_layernorm.weight", "qkv", moments["qkv"]),
            "o": self._fold_rows(made, "v_proj", "o_proj", moments["o"], heads),
            "gate_up": self._fold_norm(made, mlp_norm, "gate_up", moments["gate_up"]),
            "down": self._fold_rows(made, "up_proj", "down_proj", moments["down"], (0, 0)),
        }

    def _fold_norm(self, made: Tensors, norm: str, packed: str, moments: Moments) -> torch.Tensor:
        names = [f"{MODULE_PATHS[module]}.weight" for module in PACKED_MODULES[packed]]
        stacked = torch.cat([made[name].float() for name in names])
        scales = self._best(stacked, moments, (0, 0))
        before = made[norm].float() + self.norm_offset
        made[norm] = (before / scales - self.norm_offset).to(made[norm].dtype)
        # The norm is rounded: weights are multiplied by what its gain was really divided by.
        after = made[norm].float() + self.norm_offset
        exact = torch.where(after != 0, before / torch.where(after != 0, after, 1.0), torch.ones_like(after))
        for name in names:
            made[name] = made[name].float() * exact
        return exact

    def _fold_rows(
        self, made: Tensors, source: str, target: str, moments: Moments, heads: tuple[int, int]
    ) -> torch.Tensor:
        rows, columns = (f"{MODULE_PATHS[module]}.weight" for module in (source, target))
        scales = self._best(made[columns].float(), moments, heads)
        made[columns] = made[columns].float() * scales
        queries, keys = heads
        own = scales if queries == keys else scales.view(keys, queries // keys, -1)[:, 0].reshape(-1)
        made[rows] = made[rows].float() / own[:, None]
        bias = f"{MODULE_PATHS[source]}.bias"
        if bias in made:
            made[bias] = (made[bias].float() / own).to(made[bias].dtype)
        return scales

    def _best(self, weight: torch.Tensor, moments: Moments, heads: tuple[int, int]) -> torch.Tensor:
        group, bits = self._group(weight.shape[1]), self.scheme.bits
        return awq.best_scales(weight, moments.second, moments.size, group=group, bits=bits, heads=heads)


def pack(weight: QuantizedWeight) -> Tensors:
    """A module's tensors as compressed-tensors' `pack-quantized` has them; floats as `float-quantized`."""
    if weight.coding == "e4m3":
        return {"weight": weight.codes, "weight_scale": weight.scales}
    codes = (weight.codes.short() + 128).to(torch.uint8) if weight.bits == 8 else weight.codes
    parts = {
        "weight_packed": pack_rows(codes, weight.bits),
        "weight_scale": weight.scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    if weight.zeros is not None:
        parts["weight_zero_point"] = pack_columns(weight.zeros, 4)
    return parts


def pack_gptq(weight: QuantizedWeight) -> Tensors:
    """A module's tensors as GPTQ has them with 3 bits: transposed, zeros less one, inputs in their order."""
    if weight.zeros is None:
        raise ValueError("GPTQ's files have zeros")
    inner = weight.shape[1]
    return {
        "qweight": pack_dense(weight.codes, 3).T.contiguous(),
        "qzeros": pack_dense(weight.zeros.T - 1, 3),
        "scales": weight.scales.T.contiguous(),
        "g_idx": torch.arange(inner, dtype=torch.int32) // weight.group,
    }

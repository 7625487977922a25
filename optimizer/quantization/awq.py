"""Activation-aware scales and clipping (AWQ: Lin et al., 2023, arXiv:2306.00978).

Inputs that are large on average matter most, so their weights are multiplied by a scale s before they
are rounded and the input is divided by it, which costs nothing where s is folded into the norm or the layer
before. s is a power of the inputs' mean size, by itself or over the weights', found on a grid; then each
group's range is shrunk where the clipped ends cost less than the finer steps gain. Errors are those of the
layer's output over all calibration rows (`Moments`). How the scaled weights are rounded is `compensation`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from kernels.quantization.quantize import round_to_nearest

POWERS: Final = (0.2, 0.35, 0.5, 0.65, 0.8)
SHRINKS: Final = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
"""Parts of a group's range."""
_LEAST: Final = 1e-4
_SEARCHED: Final = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
"""What errors of scales are compared in: thousands of roundings of 2^-9 leave no mark on their sum."""


def best_scales(
    weight: torch.Tensor,
    second: torch.Tensor,
    size: torch.Tensor,
    *,
    group: int,
    bits: int = 4,
    heads: tuple[int, int] = (0, 0),
) -> torch.Tensor:
    """float32 [in], by which weights are to be multiplied before they are rounded.

    Args:
        weight: float32 [out, in]. second, size: of its inputs.
        heads: where inputs are heads of attention, their number and that of the values' heads: those that
            read one value share their scales.
    """
    best, least = torch.ones_like(size), torch.inf
    second = second.to(_SEARCHED)
    for scales in _candidates(weight, size, group, heads):
        made = round_to_nearest(weight * scales, bits=bits, group=group, zeros=True).dequantize()
        error = _error(made.div_(scales).sub_(weight), second)
        if error < least:
            best, least = scales, error
    return best


def _candidates(
    weight: torch.Tensor, size: torch.Tensor, group: int, heads: tuple[int, int]
) -> Iterator[torch.Tensor]:
    """The first is one: what is found is never worse than rounding alone, on the calibration rows."""
    yield torch.ones_like(size)
    inputs = _shared(size, heads).clamp(min=_LEAST)
    grouped = weight.abs().view(weight.shape[0], -1, group)
    relative = (grouped / grouped.amax(2, keepdim=True).clamp(min=1e-9)).view_as(weight).mean(0)
    weights = _shared(relative, heads).clamp(min=_LEAST)
    for power in POWERS:
        for scales in (inputs**power, inputs**power / weights ** (1 - power)):
            yield scales / (scales.max() * scales.min()).sqrt()


def _shared(values: torch.Tensor, heads: tuple[int, int]) -> torch.Tensor:
    """The mean over the heads that read one value, for each of them."""
    queries, keys = heads
    if queries == keys:
        return values
    by_value = values.view(keys, queries // keys, -1)
    return by_value.mean(1, keepdim=True).expand_as(by_value).reshape(-1)


def _error(difference: torch.Tensor, second: torch.Tensor) -> float:
    """`second` of the dtype that products are taken in; their sum is float32."""
    return float((difference.to(second.dtype) @ second).float().mul_(difference).sum())


def best_shrink(weight: torch.Tensor, second: torch.Tensor, *, group: int, bits: int = 4) -> torch.Tensor:
    """[out, groups]: the part of each group's range whose error over the calibration rows is least."""
    out, inner = weight.shape
    blocks = torch.stack(
        [second[at : at + group, at : at + group] for at in range(0, inner, group)]
    )  # [groups, group, group]
    best = torch.ones(out, inner // group)
    least = torch.full_like(best, torch.inf)
    for part in SHRINKS:
        shrink = torch.full_like(best, part)
        made = round_to_nearest(weight, bits=bits, group=group, zeros=True, shrink=shrink).dequantize()
        difference = made.sub_(weight).view(out, -1, group).transpose(0, 1)
        error = torch.bmm(difference, blocks).mul_(difference).sum(2).T
        better = error < least
        best, least = torch.where(better, shrink, best), torch.where(better, error, least)
    return best

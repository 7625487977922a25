"""Weights rounded to whole numbers of few bits, by channel or by group of inputs."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import torch

from kernels.quantization.reference import LARGEST_E4M3
from kernels.quantization.weight import E2M1, QuantizedWeight

LEAST_SCALE: Final = 2.0**-60
"""Of a group of noughts: it must be a number that bf16 has, and whose inverse float32 has."""
MXFP4_GROUP: Final = 32


def round_to_nearest(
    plain: torch.Tensor,
    *,
    bits: int,
    group: int,
    zeros: bool,
    shrink: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> QuantizedWeight:
    """Each number to the nearest of its group's grid, whose scale is rounded to `dtype` beforehand.

    Args:
        plain: float32 [out, in].
        bits: 3 (with zeros only; the result holds them as 4), 4 or 8.
        zeros: 3 and 4 bits only: the grid spans from the least to the largest number (nought is always of
            it); without, it is as wide on both sides.
        shrink: [out, groups], what part of the group's range the grid spans; 1 where None.
    """
    out = plain.shape[0]
    grouped = plain.view(out, -1, group)
    part = torch.ones(grouped.shape[:2]) if shrink is None else shrink
    if zeros:
        scales, zero = grid(grouped, part, bits=bits, dtype=dtype)
        codes = torch.round(grouped / scales[..., None]).add_(zero[..., None]).clamp_(0, 2**bits - 1)
        codes = codes.to(torch.uint8).view_as(plain)
        return QuantizedWeight(codes, scales.to(dtype), zero.to(torch.uint8), 4)
    largest = grouped.abs().amax(2).mul_(part)
    if bits == 8:
        scales = _rounded(largest / 127, dtype)
        whole = torch.round(grouped / scales[..., None]).clamp_(-128, 127)
        return QuantizedWeight(whole.to(torch.int8).view_as(plain), scales.to(dtype), None, bits)
    scales = _rounded(largest / 7.5, dtype)
    codes = torch.round(grouped / scales[..., None]).add_(8).clamp_(0, 15)
    return QuantizedWeight(codes.to(torch.uint8).view_as(plain), scales.to(dtype), None, bits)


def grid(
    grouped: torch.Tensor, part: torch.Tensor, *, bits: int = 4, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales, rounded to `dtype`, and zeros that span `part` of the range of the last axis.

    GPTQ's files store a zero less one, so a zero of 3 bits is at least 1.
    """
    high = grouped.amax(-1).clamp(min=0).mul_(part)
    low = grouped.amin(-1).clamp(max=0).mul_(part)
    scales = _rounded((high - low) / (2**bits - 1), dtype)
    return scales, torch.round(-low / scales).clamp_(1 if bits == 3 else 0, 2**bits - 1)


def _rounded(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps  # a scale of 0 would divide by 0
    return scales.clamp_(min=max(LEAST_SCALE, least)).to(dtype).float()


def to_e4m3(plain: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> QuantizedWeight:
    """float32 [out, in] to the nearest of E4M3's numbers, each channel's largest to 448 of its scale."""
    scales = _rounded(plain.abs().amax(1, keepdim=True) / LARGEST_E4M3, dtype)
    codes = (plain / scales).clamp_(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)
    return QuantizedWeight(codes, scales.to(dtype), None, 8, "e4m3")


def to_mxfp4(plain: torch.Tensor) -> QuantizedWeight:
    """float32 [out, in], in a multiple of 32, as OCP's Microscaling specification says.

    A group's scale is the power of two that brings its largest number to E2M1's last binade; what is beyond 6
    there becomes 6.
    """
    out = plain.shape[0]
    grouped = plain.view(out, -1, MXFP4_GROUP)
    _, exponents = torch.frexp(grouped.abs().amax(2))  # the largest number is 2^(exponent - 1) at least
    scales = torch.exp2((exponents - 3).clamp(-127, 127).float())
    ratios = (grouped / scales[..., None]).view_as(plain)
    return QuantizedWeight(_to_e2m1(ratios), scales.bfloat16(), None, 4, "e2m1")


def _to_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Codes of the nearest of E2M1's numbers; between two, of the one whose last bit is 0."""
    sizes = values.abs()
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for lower, (here, above) in enumerate(pairwise(E2M1)):
        middle = (here + above) / 2
        codes += sizes > middle if lower % 2 == 0 else sizes >= middle
    return codes | (values.signbit().to(torch.uint8) << 3)

"""The available weight formats."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import torch

GROUPS: Final = (128, 64, 32)


class Scheme(enum.StrEnum):
    """Storage format of linear layers' weights; embeddings, head and norms are unchanged."""

    INT8 = "int8"
    AWQ_INT4_G128 = "awq_int4_g128"
    AWQ_INT4_G64 = "awq_int4_g64"
    AWQ_INT3_G128 = "awq_int3_g128"
    RTN_INT4_G128 = "rtn_int4_g128"
    FP8 = "fp8"

    @property
    def bits(self) -> int:
        if self is Scheme.AWQ_INT3_G128:
            return 3
        return 8 if self in (Scheme.INT8, Scheme.FP8) else 4

    @property
    def dtype(self) -> torch.dtype:
        """Type of the stored scales; readers of GPTQ's files take fp16."""
        return torch.float16 if self.bits == 3 else torch.bfloat16

    @property
    def calibrates(self) -> bool:
        """True if it needs the layers' inputs on calibration texts."""
        return self in (Scheme.AWQ_INT4_G128, Scheme.AWQ_INT4_G64, Scheme.AWQ_INT3_G128)

    def group_size(self, inner: int) -> int:
        """Return how many of a layer's `inner` inputs share a scale; 0 for a scale per channel.

        If the scheme's own group size does not divide `inner`, the next smaller of GROUPS that does is used;
        -1 if none does.
        """
        if self.bits == 8:
            return 0
        largest = 64 if self is Scheme.AWQ_INT4_G64 else 128
        return next((size for size in GROUPS if size <= largest and inner % size == 0), -1)

    def common_group(self, inners: Iterable[int]) -> int:
        """Return the largest group that divides the inputs of all layers, as GPTQ's files demand."""
        return min(map(self.group_size, inners))

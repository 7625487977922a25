"""The model shapes that a self-check needs, and the tolerance against the specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from kernels.activation import Kind

ROUNDINGS: Final = {torch.float32: 20}
"""Roundings of the largest value allowed beyond twice PyTorch's own error; 1 for other dtypes. In float32,
attention's exponentials differ by more than one, as torch's own kernels allow.
"""


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """Sizes on which the kernels are specialized.

    Attributes:
        linears: (columns of the input, columns of each slice) of a decoder layer's packed linear layers.
        windows: of attention, 0 for all tokens.
        dtype: as in `str(torch.dtype)`.
        fp8, mxfp4: True if weights are in E4M3 with a scale per channel; in E2M1 in groups of 32.
        groups: (inputs that share a scale, True with zeros) of the 4-bit weights.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    linears: tuple[tuple[int, tuple[int, ...]], ...]
    windows: tuple[int, ...]
    activation: Kind
    page_size: int
    dtype: str
    groups: tuple[tuple[int, bool], ...] = ()
    fp8: bool = False
    mxfp4: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype.removeprefix("torch."))
        return found


class WrongResult(Exception):
    """A kernel's result differs from the specification."""


def demand(name: str, ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, floor: float) -> None:
    """Apply the kernel tests' tolerance: twice PyTorch's error in the same dtype, plus roundings of `floor`.

    Args:
        theirs: the specification in the dtype of `ours`; `exact` is in float64.

    Raises:
        WrongResult: naming `name`; also for NaN.
    """
    ours = ours.cpu()
    allowed = 2 * float((theirs.double() - exact).abs().max())
    allowed += ROUNDINGS.get(ours.dtype, 1) * torch.finfo(ours.dtype).eps * floor
    error = float((ours.double() - exact).abs().max())
    if not error <= allowed:
        raise WrongResult(f"{name}: largest error {error:.3g}, allowed {allowed:.3g}")

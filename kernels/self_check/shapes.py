"""What a self-check must know of a model, and when a result agrees with the specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from kernels.activation import Kind

ROUNDINGS: Final = {torch.float32: 20}
"""Of the largest value, beyond twice PyTorch's own error; 1 for other dtypes. In float32 exponentials of
attention differ by more than one, as torch's own kernels allow."""


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """Sizes that the kernels are specialized on.

    Attributes:
        linears: (columns of the input, columns of each slice) of a decoder layer's packed linear layers.
        windows: of attention, 0 for all tokens.
        dtype: as in `str(torch.dtype)`.
        fp8, mxfp4: whether weights are in E4M3, a scale a channel; in E2M1 in groups of 32.
        groups: (inputs that share a scale, whether they have a zero) of the weights that have 4 bits.
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
    """A kernel's result is not the specification's."""


def demand(name: str, ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, floor: float) -> None:
    """The rule of the kernels' tests: twice PyTorch's error in the same dtype, and roundings of `floor`.

    Args:
        theirs: the specification in the dtype of `ours`, `exact` in float64.

    Raises:
        WrongResult: naming `name`; also for NaN.
    """
    ours = ours.cpu()
    allowed = 2 * float((theirs.double() - exact).abs().max())
    allowed += ROUNDINGS.get(ours.dtype, 1) * torch.finfo(ours.dtype).eps * floor
    error = float((ours.double() - exact).abs().max())
    if not error <= allowed:
        raise WrongResult(f"{name}: largest error {error:.3g}, allowed {allowed:.3g}")

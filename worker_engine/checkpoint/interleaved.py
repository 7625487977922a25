"""The order of gate and up in tensors that hold both."""

from __future__ import annotations

import torch


def gate_then_up(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Return a copy of a tensor in which gate and up alternate, with the gate's half before up's.

    Args:
        dim: the dimension of the 2 * inter outputs.
    """
    order = torch.arange(tensor.shape[dim], device=tensor.device).view(-1, 2).T.reshape(-1)
    return tensor.index_select(dim, order)

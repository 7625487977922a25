"""Chooses the experts of each row from the router's logits."""

from __future__ import annotations

import torch

from kernels import native
from kernels.moe import native_experts


def route(logits: torch.Tensor, top_k: int, *, normalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights, float32 [rows, top_k], and the experts, int64 [rows, top_k], of each row.

    The weights are the largest probabilities of a softmax over all experts, in falling order.

    Args:
        logits: [rows, experts].
        normalize: divide the weights of a row by their sum.

    Raises:
        ValueError: top_k is not between 1 and the number of experts.
    """
    if not 1 <= top_k <= logits.shape[1]:
        raise ValueError(f"top_k is {top_k}; expected 1 to {logits.shape[1]}, the number of experts")
    if native.LIBRARY is not None and logits.is_cpu and logits.dtype == torch.bfloat16:
        return native_experts.route(logits.contiguous(), top_k, normalize=normalize)
    weights, experts = torch.softmax(logits.float(), dim=-1).topk(top_k, dim=-1)
    return (weights / weights.sum(dim=-1, keepdim=True) if normalize else weights), experts

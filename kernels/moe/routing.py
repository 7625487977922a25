"""Chooses the experts of each row from the router's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class GroupRule:
    """How DeepSeek's routers choose: experts of the best groups alone.

    Attributes:
        scores: function of the logits.
        groups: of equal size, of neighbouring experts.
        kept: groups of which experts are chosen.
        best: number of a group's best experts whose scores add up to the group's.
        factor: of all weights, at last.
    """

    scores: Literal["softmax", "sigmoid"]
    groups: int = 1
    kept: int = 1
    best: int = 1
    factor: float = 1.0


def route_by_group(
    logits: torch.Tensor,
    top_k: int,
    rule: GroupRule,
    *,
    normalize: bool,
    correction: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights, float32 [rows, top_k], and the experts, int64 [rows, top_k], of each row.

    The weights are the scores of the chosen experts. `correction` is added for the choice alone.

    Args:
        logits: [rows, experts].
        normalize: divide the weights of a row by their sum.
        correction: float32 [experts].

    Raises:
        ValueError: the kept groups have fewer than top_k experts, or the groups differ in size.
    """
    rows, experts = logits.shape
    if experts % rule.groups or not 1 <= top_k <= rule.kept * (experts // rule.groups):
        raise ValueError(
            f"top_k is {top_k} of {experts} experts in {rule.groups} groups; expected groups of equal size, "
            f"of which {rule.kept} have at least top_k experts"
        )
    scores = torch.softmax(logits.float(), dim=-1) if rule.scores == "softmax" else logits.float().sigmoid()
    # Without groups, logits order the experts as scores do, also where scores are all but 1.
    choice = logits.float() if rule.groups == 1 else scores
    if correction is not None:
        choice = scores + correction
    if rule.kept < rule.groups:
        by_group = choice.view(rows, rule.groups, -1)
        best = by_group.topk(rule.best, dim=-1).values.sum(dim=-1)
        hidden = torch.ones_like(best, dtype=torch.bool)
        hidden.scatter_(1, best.topk(rule.kept, dim=-1).indices, False)
        choice = by_group.masked_fill(hidden.unsqueeze(-1), float("-inf")).view(rows, experts)
    chosen = choice.topk(top_k, dim=-1).indices
    weights = scores.gather(1, chosen)
    if normalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * rule.factor, chosen

"""Adapters' pairs on stacked experts, as PEFT's `target_parameters` writes them, expert by expert.

PEFT holds the pair of a parameter [experts, d1, d2] as two matrices: A's rows are expert-major (row
`expert * rank + j`), B's columns are rank-major with the expert fastest (column `j * experts + expert`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from contracts.adapters.config import AdapterConfigError

_SINCE: Final = (0, 19)
"""Version of PEFT since which A multiplies the inputs of [experts, out, in]; before, the outputs."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""A [experts, rank, in] and B [experts, rank, out]."""


def stacked_pair(a: torch.Tensor, b: torch.Tensor, experts: int, *, exchanged: bool) -> Pair:
    """Return the pair of every expert of a parameter [experts, out, in] or [experts, in, out].

    Args:
        a, b: as in the file, A [experts * rank, columns] and B [rows, rank * experts].
        exchanged: True if A is on the outputs (`is_exchanged`).
    """
    rank = a.shape[0] // experts
    by_expert_a = a.view(experts, rank, a.shape[1])
    by_expert_b = b.view(b.shape[0], rank, experts).permute(2, 1, 0)
    return (by_expert_b, by_expert_a) if exchanged else (by_expert_a, by_expert_b)


def is_exchanged(
    a: torch.Tensor,
    b: torch.Tensor,
    shape: tuple[int, int],
    raw: Mapping[str, Any],
    *,
    a_on_inputs: bool = False,
    transposed: bool = False,
) -> bool:
    """Return True if A multiplies the outputs of the experts' matrices.

    It does in files of PEFT before 0.19, and since then of parameters [experts, in, out] whose module does
    not declare that order. The shapes of the tensors decide; the family or the version of PEFT where the
    matrices are square.

    Args:
        shape: (out, in) of an expert's matrix.
        raw: adapter_config.json.
        a_on_inputs, transposed: of the model's family, see `ExpertsConfig`.

    Raises:
        AdapterConfigError: the matrices are square, and peft_version does not tell.
    """
    out, inner = shape
    if out != inner:
        return (a.shape[1], b.shape[0]) == shape
    if a_on_inputs:
        return False
    match str(raw.get("peft_version") or "").split(".")[:2]:
        case [major, minor] if major.isdecimal() and minor.isdecimal():
            return ((int(major), int(minor)) < _SINCE) != transposed
    raise AdapterConfigError(
        f"adapter_config.json: peft_version is {raw.get('peft_version')!r}, and the experts' matrices are "
        f"square ({out}), so that nothing tells which side lora_A is on: state the version of PEFT that "
        "saved the adapter"
    )


def split_halves(a: torch.Tensor, b: torch.Tensor) -> tuple[Pair, Pair] | None:
    """Split a pair of gate_up_proj whose B is block-diagonal into the pairs of gate and of up.

    PEFT makes such a pair of a file that holds gate and up by themselves: their ranks one after the other,
    and zeros between. Half of B is not stored then. Return None for any other pair.

    Args:
        a: [experts, 2 * rank, in].
        b: [experts, 2 * rank, 2 * inter].
    """
    rank, inter = a.shape[1] // 2, b.shape[2] // 2
    if a.shape[1] % 2 or bool(b[:, :rank, inter:].any()) or bool(b[:, rank:, :inter].any()):
        return None
    return (a[:, :rank], b[:, :rank, :inter]), (a[:, rank:], b[:, rank:, inter:])

"""Multi-LoRA in batched GEMMs: the CPU path, and what any device without its own kernels runs."""

from __future__ import annotations

from typing import Final, cast

import torch
from torch.nn.functional import linear

from kernels.lora.groups import Group, group
from kernels.lora.segments import Segments
from kernels.lora.stack import Stack
from kernels.lora.weights import LoraWeights

COUPLED_RANKS: Final = 8
"""Up to so many columns a bf16 shrink of one row goes in fours, above in twos, and the foreign products are
dropped: a product of few columns costs oneDNN hardly less. 1.9 times as fast at rank 4, 1.2 at 16, 1.1 at 64.
fp32 loses by it (0.65)."""

COUPLED_INNER: Final = 1024
"""Input columns from which higher ranks gain too: at 576 and rank 16 the dropping costs what it saves."""

LONG_INNER: Final = 2048
"""Input columns below which MKL takes one fp32 row faster as the right-hand side: 1.6 times at 576, 2.1 at
1536, 0.85 at 4096."""


def apply_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    weights: LoraWeights,
    segments: Segments,
    *,
    gain: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    """See `kernels.lora.apply_lora`. README.md tells which measurement decided what."""
    check(out, x, weights, segments, gain, bias)
    stacks = weights.stacks
    for part in _groups(weights, segments):
        rows = x[part.span] if part.span is not None else x.index_select(0, part.taken)
        stack = stacks[part.stack]
        shrunk = _shrink(rows.view(part.adapters, part.rows, -1), _of(stack.a, part))
        _expand(out, shrunk, stack, part)
    if gain is not None:
        _magnify(out, segments, gain, bias)


def embed_lora(out: torch.Tensor, token_ids: torch.Tensor, weights: LoraWeights, segments: Segments) -> None:
    """See `kernels.lora.embed_lora`."""
    _check_embedding(out, token_ids, weights, segments)
    for part in _groups(weights, segments):
        a = weights.stacks[part.stack].a
        adapter = torch.arange(part.members.start, part.members.stop, device=a.device)[:, None, None]
        rank = torch.arange(a.shape[1], device=a.device)
        tokens = token_ids.index_select(0, part.taken).view(part.adapters, part.rows, 1)
        _expand(out, a[adapter, rank, tokens], weights.stacks[part.stack], part)


def _groups(weights: LoraWeights, segments: Segments) -> tuple[Group, ...]:
    groups = segments.plans.get(weights.layout)
    if groups is None:
        groups = segments.plans[weights.layout] = group(segments, weights.layout)
    return cast("tuple[Group, ...]", groups)


def _shrink(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """[adapters, rows, in] x [adapters, ranks, in] -> [adapters, rows, ranks]."""
    adapters, rows, inner = x.shape
    if adapters == 1:
        return linear(x[0], a[0]).unsqueeze(0)
    if x.dtype == torch.bfloat16:
        if rows == 1 and (inner >= COUPLED_INNER or a.shape[1] <= COUPLED_RANKS):
            return _shrink_coupled(x, a)
    elif rows == 1 and inner < LONG_INNER:
        return torch.bmm(a, x.transpose(1, 2)).transpose(1, 2)
    return torch.bmm(x, a.transpose(1, 2))


def _shrink_coupled(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """One row per adapter: rows and adapters go in couples, and the foreign products are dropped."""
    adapters, _, inner = x.shape
    ranks = a.shape[1]
    couple = min(4 if ranks <= COUPLED_RANKS else 2, adapters)
    if odd := adapters % couple:
        return torch.cat([_shrink_coupled(x[:-odd], a[:-odd]), _shrink_coupled(x[-odd:], a[-odd:])])
    many = torch.bmm(x.view(-1, couple, inner), a.view(-1, couple * ranks, inner).transpose(1, 2))
    own = many.view(-1, couple, couple, ranks).diagonal(dim1=1, dim2=2)
    return own.transpose(1, 2).reshape(adapters, 1, ranks)


def _expand(out: torch.Tensor, shrunk: torch.Tensor, stack: Stack, part: Group) -> None:
    """Adds [adapters, rows, ranks] x B to the group's rows of `out`."""
    rows = out[part.span] if part.span is not None else out.index_select(0, part.taken)
    for piece in stack.slices:
        target = rows[:, piece.columns]
        left, b = shrunk[:, :, piece.ranks], _of(piece.b, part)
        if part.adapters == 1:
            target.addmm_(left[0], b[0])
            continue
        target = target.view(part.adapters, part.rows, -1)
        if out.dtype == torch.bfloat16 or target.is_contiguous():
            target.baddbmm_(left, b)
        else:
            # Into strided fp32 columns ATen multiplies adapter by adapter: 2.1 times as slow.
            target.add_(torch.bmm(left, b))
    if part.span is None:
        out.index_copy_(0, part.targets, rows if part.kept is None else rows.index_select(0, part.kept))


def _of(weights: torch.Tensor, part: Group) -> torch.Tensor:
    """The group's part of a stack; the whole, which is usual, without the 2 us of a view."""
    return weights if part.adapters == weights.shape[0] else weights[part.members]


def _magnify(out: torch.Tensor, segments: Segments, gain: torch.Tensor, bias: torch.Tensor | None) -> None:
    """DoRA: whole rows times their adapter's gain, in float32; the bias stays as it is."""
    owner = segments.row_adapter
    rows = ((owner >= 0) & gain.ne(1).any(1)[owner]).nonzero().squeeze(1)
    if not len(rows):
        return
    scaled = out.index_select(0, rows).float()
    factor = gain.index_select(0, owner.index_select(0, rows))
    scaled = scaled.mul_(factor) if bias is None else scaled.sub_(bias).mul_(factor).add_(bias)
    out.index_copy_(0, rows, scaled.to(out.dtype))


def check(
    out: torch.Tensor,
    x: torch.Tensor,
    weights: LoraWeights,
    segments: Segments,
    gain: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    """Raises ValueError naming the argument of `apply_lora` that does not fit."""
    layout = weights.layout
    if x.dim() != 2 or x.shape[1] != layout.inner or x.shape[0] != len(segments.adapters):
        expected = f"[{len(segments.adapters)}, {layout.inner}]"
        raise ValueError(f"x has shape {list(x.shape)}; expected {expected}")
    if x.stride(1) != 1:
        raise ValueError(
            f"x of shape {list(x.shape)} has strides {list(x.stride())}; expected the last to be 1"
        )
    _check_out(out, weights, segments)
    for name, tensor in (("x", x), ("out", out)):
        if tensor.dtype != layout.dtype or tensor.device != weights.device:
            raise ValueError(
                f"{name} of shape {list(tensor.shape)} is {tensor.dtype} on {tensor.device}; "
                f"expected {layout.dtype} on {weights.device} as the weights are"
            )
    adapters = len(layout.ranks[0])
    if gain is not None and (gain.shape != (adapters, out.shape[1]) or gain.dtype != torch.float32):
        raise ValueError(
            f"gain has shape {list(gain.shape)}, {gain.dtype}; expected float32 [{adapters}, {out.shape[1]}]"
        )
    if bias is not None and bias.shape != out.shape[1:]:
        raise ValueError(f"bias has shape {list(bias.shape)}; expected [{out.shape[1]}]")


def _check_out(out: torch.Tensor, weights: LoraWeights, segments: Segments) -> None:
    rows, width = len(segments.adapters), weights.layout.width
    if out.dim() != 2 or out.shape[0] != rows or out.shape[1] < width or out.stride(1) != 1:
        expected = f"[{rows}, at least {width}], last dimension contiguous"
        raise ValueError(f"out has shape {list(out.shape)}; expected {expected}")


def _check_embedding(
    out: torch.Tensor, token_ids: torch.Tensor, weights: LoraWeights, segments: Segments
) -> None:
    _check_out(out, weights, segments)
    rows, vocabulary = len(segments.adapters), weights.layout.inner
    if token_ids.shape != (rows,) or token_ids.dtype != torch.int64:
        raise ValueError(
            f"token_ids has shape {list(token_ids.shape)}, {token_ids.dtype}; expected int64 [{rows}]"
        )
    if rows and not token_ids.is_cuda:
        lowest, highest = (int(end) for end in token_ids.aminmax())
        if lowest < 0 or highest >= vocabulary:
            raise ValueError(
                f"token_ids of shape [{rows}] go from {lowest} to {highest}; expected 0 to {vocabulary - 1}"
            )

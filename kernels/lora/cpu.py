"""Multi-LoRA row by row and in GEMMs: the CPU path, and the fallback for devices without kernels.

Each row multiplies its own adapter's ranks in place: the shrink is a dot product per rank, the expand a
weighted sum of B's rows. PyTorch has both as halves of `embedding_bag`: the gradient of its weights, and its
sum. Nothing is padded or stacked, and no unused product is computed. README.md has the measured gains.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from kernels.lora import native_rows
from kernels.lora.products import Gemm, Products, RowByRow, Rows
from kernels.lora.segments import Segments
from kernels.lora.weights import LoraWeights, RankMatrices

_SUM = 0
"""The sum mode of embedding_bag."""


def apply_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    weights: LoraWeights,
    segments: Segments,
    *,
    gain: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    """See `kernels.lora.apply_lora`. README.md has the measurements behind each choice."""
    check(out, x, weights, segments, gain, bias)
    if not _add_native(out, x, weights, segments):
        products = segments.plans.get(weights.layout)
        if not isinstance(products, Products):
            products = segments.plans[weights.layout] = Products.choose(segments, weights.layout)
        matrices = weights.matrices
        if products.rows is not None:
            _expand(out, _dots(x, matrices.a, products.rows), matrices, products.rows)
        for gemm in products.gemms:
            _multiply(out, x, matrices, gemm)
    if gain is not None:
        _magnify(out, segments, gain, bias)


def embed_lora(out: torch.Tensor, token_ids: torch.Tensor, weights: LoraWeights, segments: Segments) -> None:
    """See `kernels.lora.embed_lora`."""
    _check_embedding(out, token_ids, weights, segments)
    rows = Products.choose(segments, weights.layout, gemms=False).rows
    if rows is not None:
        _expand(out, weights.matrices.a[rows.a, token_ids[rows.owner]], weights.matrices, rows)


def _add_native(out: torch.Tensor, x: torch.Tensor, weights: LoraWeights, segments: Segments) -> bool:
    """Process all rows in one call of the native library; return False where it cannot."""
    held = native_rows.weights_of(weights)
    if held is None:
        return False
    native_rows.add(out, x, native_rows.products_of(segments, weights.layout), held)
    return True


def _dots(x: torch.Tensor, a: torch.Tensor, rows: RowByRow) -> torch.Tensor:
    """Return `x[owner[i]] . a[row[i]]` for every i, summed in float32 and rounded once."""
    dots: torch.Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        x, a, rows.a, rows.owner, rows.owner, _SUM
    )
    return dots


def _expand(out: torch.Tensor, shrunk: torch.Tensor, matrices: RankMatrices, rows: RowByRow) -> None:
    """Add to each row the sum of B's rows, weighted by its shrunk values."""
    for piece in rows.slices:
        b = matrices.b[piece.piece]
        delta = torch._embedding_bag_forward_only(
            b, piece.b, piece.bags, False, _SUM, False, shrunk[piece.ranks]
        )[0]
        _add(out[:, piece.columns], piece.targets, delta)


def _multiply(out: torch.Tensor, x: torch.Tensor, matrices: RankMatrices, gemm: Gemm) -> None:
    """Process all rows of one adapter: one shrink for all slices, and one expand per slice."""
    shrunk = linear(x[gemm.rows], matrices.a[gemm.a])
    for piece, columns, ranks, rows in gemm.slices:
        target, b = out[:, columns], matrices.b[piece][rows]
        if isinstance(gemm.rows, slice):
            target[gemm.rows].addmm_(shrunk[:, ranks], b)
        else:
            target.index_copy_(0, gemm.rows, target[gemm.rows].addmm_(shrunk[:, ranks], b))


def _add(target: torch.Tensor, rows: Rows, delta: torch.Tensor) -> None:
    if isinstance(rows, slice):
        target[rows].add_(delta)
    else:
        target.index_add_(0, rows, delta)


def _magnify(out: torch.Tensor, segments: Segments, gain: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Apply DoRA: multiply rows by their adapter's gain, in float32; the bias is not scaled."""
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
    """Raise ValueError naming the argument of `apply_lora` that does not fit."""
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
    adapters = layout.adapters
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

"""Multi-LoRA on CUDA: checks the arguments and launches the kernels of a plan."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch

from kernels.lora.plan import GraphPlan, Part, Plan
from kernels.lora.rank_rows import RankRows
from kernels.lora.segments import Segments
from kernels.lora.tile import Tile
from kernels.lora.triton_kernels import expand_kernel, fused_kernel, look_up_kernel, shrink_kernel
from kernels.lora.weights import LoraWeights

INDEX_TYPES: Final = (torch.int32, torch.int64)

WARPS_PER_SM: Final = 16
"""Warps of the fused kernel on one multiprocessor: what 128 registers a thread allow."""


def apply_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    weights: LoraWeights,
    segments: Segments,
    *,
    gain: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    """The signature of `cpu.apply_lora`; table and plan are made once and kept with their arguments.

    The form of lm_head as well: its slice is as wide as the vocabulary.

    Raises:
        ValueError: see `run`.
    """
    rows = RankRows.for_weights(weights)
    plan = segments.plans.get(rows.shape)
    if not isinstance(plan, Plan):
        plan = segments.plans[rows.shape] = Plan.build(segments.adapters, rows)
    run(out, x, rows, plan, gain=gain, bias=bias)


def embed_lora(out: torch.Tensor, token_ids: torch.Tensor, weights: LoraWeights, segments: Segments) -> None:
    """`apply_lora` for an embedding, whose input is a token: its column of A is looked up.

    Args:
        out: [rows, columns], base embeddings; changed in place.
        token_ids: int32 or int64 [rows], contiguous, each below A's columns, the vocabulary.

    Raises:
        ValueError: arguments whose shapes, dtypes or devices do not fit each other.
    """
    rows = RankRows.for_weights(weights)
    _check_out(out, len(token_ids), rows)
    if token_ids.dim() != 1 or not token_ids.is_contiguous() or token_ids.dtype not in INDEX_TYPES:
        raise ValueError(
            f"token_ids has shape {list(token_ids.shape)}, {token_ids.dtype}; "
            "expected int32 or int64 [rows], contiguous"
        )
    key = ("embedding", rows.shape)
    plan = segments.plans.get(key)
    if not isinstance(plan, Plan):
        plan = segments.plans[key] = Plan.build(segments.adapters, rows, embedding=True)
    _check_plan(out, rows, plan)
    for part in plan.parts:
        _run_look_up(token_ids, rows, part)
        _run_expand(out, rows, part, None, None)


def run(
    out: torch.Tensor,
    x: torch.Tensor,
    rows: RankRows,
    plan: Plan,
    *,
    gain: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    fused: bool | None = None,
) -> None:
    """Adds each row's adapter to `out` in place; rows without adapter keep their bits.

    Args:
        out: [rows, columns], base output; the last dimension contiguous.
        x: [rows, inner], dtype of `out` and of the weights; the last dimension contiguous.
        rows: the layer's row table.
        plan: made for this batch and this shape of layer.
        gain: float32 [adapters, columns], DoRA's magnitude over the norm of the merged columns; 1 for
            adapters without. The row's whole output without bias is multiplied.
        bias: [columns], the bias that `out` contains; only `gain` needs it.
        fused: shrink and expand in one launch; by default as the tile says. Sums by atomics take two.

    Raises:
        ValueError: arguments that do not fit each other, or a plan of another batch or layer shape.
    """
    _check(out, x, rows, gain, bias)
    _check_plan(out, rows, plan)
    for part in plan.parts:
        if not part.atomic and (part.tile.fused if fused is None else fused):
            grid = min(part.shrinks + part.expands, _persistent_grid(part.tile, out.device))
            _run_fused(out, x, rows, part, grid, gain, bias, graph=False)
        else:
            _run_shrink(x, rows, part)
            _run_expand(out, rows, part, gain, bias)


def run_graph(
    out: torch.Tensor,
    x: torch.Tensor,
    rows: RankRows,
    plan: GraphPlan,
    *,
    gain: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    """`run` for capture: one launch, whose grid and arguments do not depend on the batch.

    Raises:
        ValueError: see `run`; the batch that is loaded has more rows than `x`.
    """
    _check(out, x, rows, gain, bias)
    if plan.rows > x.shape[0]:
        raise ValueError(f"x has shape {list(x.shape)}; expected the {plan.rows} rows of the plan or more")
    plan.captured(x.shape[0], aligned=rows.aligned)
    # The table may change between replays: what holds of its rows today is no part of the captured launch.
    grid = _persistent_grid(plan.part.tile, out.device)
    _run_fused(out, x, rows, plan.part, grid, gain, bias, graph=True)


def _run_shrink(x: torch.Tensor, rows: RankRows, part: Part) -> None:
    tile = part.tile
    if part.atomic:
        part.shrunk.zero_()
    shrink_kernel[(part.shrinks,)](
        part.items,
        x,
        x.stride(0),
        part.row_index,
        rows.memory,
        rows.a,
        rows.scale,
        part.shrunk,
        rows.inner,
        part.inner_blocks,
        ROWS=tile.rows,
        RANKS=tile.ranks,
        BLOCK_INNER=tile.inner,
        EVEN_INNER=rows.inner % tile.inner == 0,
        ALIGNED=rows.aligned,
        ATOMIC=part.atomic,
        PDL=_dependent_launch(x.device),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _run_look_up(token_ids: torch.Tensor, rows: RankRows, part: Part) -> None:
    tile = part.tile
    look_up_kernel[(part.shrinks,)](
        part.items,
        token_ids,
        part.row_index,
        rows.memory,
        rows.a,
        rows.scale,
        part.shrunk,
        ROWS=tile.rows,
        RANKS=tile.ranks,
        PDL=_dependent_launch(token_ids.device),
        num_warps=tile.warps,
    )


def _run_expand(
    out: torch.Tensor, rows: RankRows, part: Part, gain: torch.Tensor | None, bias: torch.Tensor | None
) -> None:
    tile = part.tile
    pdl = _dependent_launch(out.device)
    expand_kernel[(part.expands,)](
        part.items,
        part.shrinks,
        out,
        out.stride(0),
        part.row_index,
        rows.memory,
        rows.b,
        part.shrunk,
        1 if part.atomic else part.splits,
        rows.scale if gain is None else gain,
        0 if gain is None else gain.stride(0),
        out if bias is None else bias,
        ROWS=tile.rows,
        DEPTH=tile.depth,
        BLOCK_OUTER=tile.outer,
        SPLITS=1 if part.atomic else tile.splits,
        EVEN_OUTER=part.even_outer,
        ALIGNED=rows.aligned,
        STACKED=rows.b_stacked,
        GAIN=gain is not None,
        BIAS=bias is not None,
        PDL=pdl,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **({"launch_pdl": True} if pdl else {}),
    )


def _run_fused(
    out: torch.Tensor,
    x: torch.Tensor,
    rows: RankRows,
    part: Part,
    grid: int,
    gain: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    graph: bool,
) -> None:
    tile = part.tile
    fused_kernel[(grid,)](
        part.items,
        part.counts,
        part.flags,
        x,
        x.stride(0),
        out,
        out.stride(0),
        part.row_index,
        rows.memory,
        rows.a,
        rows.b,
        rows.scale,
        part.shrunk,
        rows.scale if gain is None else gain,
        0 if gain is None else gain.stride(0),
        out if bias is None else bias,
        rows.inner,
        ROWS=tile.rows,
        RANKS=tile.ranks,
        DEPTH=tile.depth,
        BLOCK_INNER=tile.inner,
        BLOCK_OUTER=tile.outer,
        SPLITS=tile.splits,
        EVEN_INNER=rows.inner % tile.inner == 0,
        EVEN_OUTER=part.even_outer,
        ALIGNED=rows.aligned,
        STACKED=rows.b_stacked and not graph,
        GAIN=gain is not None,
        BIAS=bias is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _check(
    out: torch.Tensor, x: torch.Tensor, rows: RankRows, gain: torch.Tensor | None, bias: torch.Tensor | None
) -> None:
    if x.dim() != 2 or x.shape[1] != rows.inner or x.stride(1) != 1:
        raise ValueError(
            f"x has shape {list(x.shape)}; expected [rows, {rows.inner}], last dimension contiguous"
        )
    _check_out(out, x.shape[0], rows)
    _check_dtype("x", x, rows.memory)
    if gain is not None and (gain.dim() != 2 or gain.shape[1] != out.shape[1] or gain.dtype != torch.float32):
        raise ValueError(
            f"gain has shape {list(gain.shape)}, {gain.dtype}; expected float32 [adapters, {out.shape[1]}]"
        )
    if bias is not None and bias.shape != out.shape[1:]:
        raise ValueError(f"bias has shape {list(bias.shape)}; expected [{out.shape[1]}]")


def _check_out(out: torch.Tensor, count: int, rows: RankRows) -> None:
    if out.dim() != 2 or out.shape[0] != count or out.shape[1] < rows.widest or out.stride(1) != 1:
        expected = f"[{count}, at least {rows.widest}], last dimension contiguous"
        raise ValueError(f"out has shape {list(out.shape)}; expected {expected}")
    _check_dtype("out", out, rows.memory)


def _check_plan(out: torch.Tensor, rows: RankRows, plan: Plan) -> None:
    if plan.rows != out.shape[0]:
        raise ValueError(f"plan is of a batch of {plan.rows} rows; out has shape {list(out.shape)}")
    if not plan.shape.same(rows.shape):
        raise ValueError(
            f"plan is of layers of {plan.shape.inner} columns to {plan.shape.columns} and other adapters or "
            f"ranks than this one of {rows.inner} to {rows.shape.columns}; expected a plan of this table"
        )


def _check_dtype(name: str, tensor: torch.Tensor, memory: torch.Tensor) -> None:
    if tensor.dtype != memory.dtype or tensor.device != memory.device:
        expected = f"{memory.dtype} on {memory.device} as the weights are"
        shape = list(tensor.shape)
        raise ValueError(f"{name} of shape {shape} is {tensor.dtype} on {tensor.device}; expected {expected}")


def _persistent_grid(tile: Tile, device: torch.device) -> int:
    return max(1, WARPS_PER_SM // tile.warps) * _multiprocessors(device)


@cache
def _multiprocessors(device: torch.device) -> int:
    # The interpreter runs blocks one after another on the CPU; two show that tickets are shared out.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@cache
def _dependent_launch(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9

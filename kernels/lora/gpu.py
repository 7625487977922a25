"""Multi-LoRA on CUDA: checks the arguments and launches the kernels of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

from kernels.lora.plan import GraphPlan, Part, Plan
from kernels.lora.rank_rows import RankRows
from kernels.lora.segments import Segments
from kernels.lora.triton_kernels import expand_kernel, fused_kernel, shrink_kernel
from kernels.lora.weights import LoraWeights

GRID_PER_SM = 4
"""Blocks of the fused kernel on one multiprocessor: what 128 registers a thread allow, twice over."""


def apply_lora(out: torch.Tensor, x: torch.Tensor, weights: LoraWeights, segments: Segments) -> None:
    """The signature of `cpu.apply_lora`; table and plan are made once and kept with their arguments."""
    rows = weights.kept.get("rows")
    if not isinstance(rows, RankRows):
        rows = weights.kept["rows"] = RankRows.stacked(weights)
    columns = tuple((piece.start, piece.stop) for piece in rows.columns)  # a slice has no hash before 3.12
    key = (rows.bounds, columns, rows.inner, rows.memory.element_size())
    plan = segments.plans.get(key)
    if not isinstance(plan, Plan):
        plan = segments.plans[key] = Plan.of(segments.adapters, rows)
    run(out, x, rows, plan)


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
        fused: shrink and expand in one launch; by default for parts whose blocks have at most 16 rows.
    """
    _check(out, x, rows, gain, bias)
    for part in plan.parts:
        short = part.tile.rows <= 16 and not part.atomic
        if short if fused is None else fused:
            grid = min(part.shrinks + part.expands, GRID_PER_SM * _multiprocessors(out.device))
            _run_fused(out, x, rows, part, grid, gain, bias)
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
    """`run` for capture: one launch, whose grid and arguments do not depend on the batch."""
    _check(out, x, rows, gain, bias)
    _run_fused(out, x, rows, plan.part, GRID_PER_SM * _multiprocessors(out.device), gain, bias)


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
        part.inner_blocks,
        INNER=rows.inner,
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
        RANKS=tile.ranks,
        BLOCK_OUTER=tile.outer,
        EVEN_OUTER=part.even_outer,
        ALIGNED=rows.aligned,
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
        INNER=rows.inner,
        ROWS=tile.rows,
        RANKS=tile.ranks,
        BLOCK_INNER=tile.inner,
        BLOCK_OUTER=tile.outer,
        EVEN_INNER=rows.inner % tile.inner == 0,
        EVEN_OUTER=part.even_outer,
        ALIGNED=rows.aligned,
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
    if out.dim() != 2 or out.shape[0] != x.shape[0] or out.shape[1] < rows.widest or out.stride(1) != 1:
        expected = f"[{x.shape[0]}, at least {rows.widest}], last dimension contiguous"
        raise ValueError(f"out has shape {list(out.shape)}; expected {expected}")
    _check_dtypes((("x", x), ("out", out)), rows.memory)
    if gain is not None and (gain.dim() != 2 or gain.shape[1] != out.shape[1] or gain.dtype != torch.float32):
        raise ValueError(
            f"gain has shape {list(gain.shape)}, {gain.dtype}; expected float32 [adapters, {out.shape[1]}]"
        )
    if bias is not None and bias.shape != out.shape[1:]:
        raise ValueError(f"bias has shape {list(bias.shape)}; expected [{out.shape[1]}]")


def _check_dtypes(tensors: Iterable[tuple[str, torch.Tensor]], memory: torch.Tensor) -> None:
    for name, tensor in tensors:
        if tensor.dtype != memory.dtype or tensor.device != memory.device:
            expected = f"{memory.dtype} on {memory.device} as the weights are"
            shape = list(tensor.shape)
            raise ValueError(
                f"{name} of shape {shape} is {tensor.dtype} on {tensor.device}; expected {expected}"
            )


@cache
def _multiprocessors(device: torch.device) -> int:
    # The interpreter runs blocks one after another on the CPU; two show that tickets are shared out.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@cache
def _dependent_launch(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9

"""Paged attention on CUDA: a step's worklists on the device, and their launches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np
import torch

from kernels.attention.plan import AttentionPlan, whole_pages
from kernels.attention.tile import AttentionTile, block_dim, tile_for
from kernels.attention.triton_kernels import attention_kernel, combine_kernel
from kernels.attention.tuned_tiles import tuned_tiles
from kernels.attention.worklist import (
    FIELDS,
    Choose,
    Heads,
    Table,
    Worklist,
    block_table,
    build,
    fitted,
    worklists,
)

GRID_PER_SM = 4
"""Blocks per multiprocessor of a captured launch."""


@dataclass(slots=True)
class Part:
    """A worklist on the device.

    Attributes:
        count: number of items; `counts`, int32 [1], holds the same for captured launches.
        split: `combine_kernel` joins the parts; otherwise blocks write their rows of the output.
        partial, peaks, totals: float32 [places * heads (* head_dim)].
    """

    tile: AttentionTile
    split: bool
    items: torch.Tensor
    row_parts: torch.Tensor
    counts: torch.Tensor
    partial: torch.Tensor
    peaks: torch.Tensor
    totals: torch.Tensor
    count: int = 0

    @classmethod
    def empty(
        cls,
        tile: AttentionTile,
        heads: Heads,
        device: torch.device,
        *,
        items: int,
        rows: int,
        places: int,
        split: bool,
    ) -> Self:
        lines = places * heads.count if split else 1
        return cls(
            tile,
            split,
            torch.empty((items, FIELDS), dtype=torch.int32, device=device),
            torch.zeros((rows, 2), dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
            torch.empty(lines * heads.dim, dtype=torch.float32, device=device),
            torch.empty(lines, dtype=torch.float32, device=device),
            torch.empty(lines, dtype=torch.float32, device=device),
        )

    def load(self, work: Worklist) -> None:
        """Copy in a worklist that fits, without waiting for the device."""
        _copy(self.items, work.items)
        _copy(self.row_parts, work.row_parts)
        _copy(self.counts, np.array([len(work.items)], dtype=np.int32))
        self.count = len(work.items)


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A step's launches for layers of one shape and window."""

    parts: tuple[Part, ...]
    table: torch.Tensor

    @classmethod
    def build(cls, plan: AttentionPlan, heads: Heads, window: int, *, choose: Choose | None = None) -> Self:
        """Build the device plan of a step.

        Args:
            choose: returns the tile for a sequence's rows, the head size and the bytes per element; by
                default the
                tuned one, see `tuned_tiles.py`.

        Raises:
            ValueError: a malformed tuned file.
        """
        choose = choose or tuned_tiles(plan, heads)
        device, parts = plan.device, []
        for work in worklists(plan, heads, window, choose=choose):
            sizes = {"items": len(work.items), "rows": plan.rows, "places": work.places}
            part = Part.empty(work.tile, heads, device, split=work.split, **sizes)
            part.load(work)
            parts.append(part)
        table = plan.kept.get("block_table")
        if not isinstance(table, torch.Tensor):
            host = block_table(plan)
            table = plan.kept["block_table"] = torch.empty(host.shape, dtype=torch.int32, device=device)
            _copy(table, host)
        return cls(tuple(parts), table)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of a plan whose tensors keep their addresses.

    Attributes:
        rows: rows of the batch, as of q and the output in the captured launch.
        sequences, pages: of the block table.
        items: blocks, per kv head.
        places: parts of all rows together.
    """

    rows: int
    sequences: int
    pages: int
    items: int
    places: int

    def __post_init__(self) -> None:
        for name in ("rows", "sequences", "pages", "items", "places"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")

    @classmethod
    def of_decode(cls, heads: Heads, *, rows: int, max_context: int, page_size: int) -> Self:
        """Return the capacity for `rows` sequences of one new token each, with contexts up to `max_context`.

        The tile is `GraphPlan`'s default.
        """
        tile = fitted(tile_for(heads.group, heads.dim, heads.element_size), heads)
        # A part has at least `tile.part` keys, and there are so few parts that kv heads times parts are
        # `blocks`.
        parts = min(rows * -(-max_context // tile.part), tile.blocks // heads.kv_count + 1)
        return cls(rows, rows, -(-max_context // page_size), rows + parts, rows + parts)


class GraphPlan:
    """A plan with fixed tensors for captured graphs, for layers of one shape and window.

    A captured `attend_graph` replays the batch that was loaded last, which may have more sequences, longer
    contexts or other chunks than at capture. Rows of the output beyond the batch are not written.
    """

    def __init__(
        self,
        heads: Heads,
        capacity: Capacity,
        *,
        window: int = 0,
        tile: AttentionTile | None = None,
        device: torch.device | str = "cuda",
    ) -> None:
        """Allocate the tensors; the batch is empty until `load`. The default tile is that of decode rows."""
        place = torch.device(device)
        tile = fitted(tile or tile_for(heads.group, heads.dim, heads.element_size), heads)
        sizes = {"items": capacity.items, "rows": capacity.rows, "places": capacity.places}
        self.heads, self.capacity, self.window = heads, capacity, window
        self.part = Part.empty(tile, heads, place, split=True, **sizes)
        self.table = torch.zeros((capacity.sequences, capacity.pages), dtype=torch.int32, device=place)

    def load(self, plan: AttentionPlan) -> None:
        """Load a batch.

        Raises:
            ValueError: it does not fit; the previous one stays loaded.
        """
        work = build(plan, self.heads, self.window, self.part.tile, range(len(plan.query_lens)))
        table = block_table(plan)
        needs = {
            "rows": plan.rows,
            "sequences": table.shape[0],
            "pages": table.shape[1],
            "items": len(work.items),
            "places": work.places,
        }
        for name, needed in needs.items():
            if needed > (held := getattr(self.capacity, name)):
                raise ValueError(f"{name} has capacity {held}; this batch needs {needed}")
        row_parts = np.zeros((self.capacity.rows, 2), dtype=np.int32)
        row_parts[: plan.rows] = work.row_parts
        self.part.load(Worklist(work.tile, work.items, row_parts, work.places))
        # Pages after a sequence's last one are never read, so they need not be cleared.
        _copy(self.table[:, : table.shape[1]], table)


def _copy(target: torch.Tensor, source: Table) -> None:
    host = torch.from_numpy(source)
    if target.is_cuda:
        # Copies are asynchronous only from pinned memory; the allocator keeps it until the copy is done.
        host = host.pin_memory()
    target[: len(source)].copy_(host, non_blocking=True)


def attend(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Same signature as `kernels.attention.attend`; the plan caches the worklists."""
    heads = Heads(q.shape[1], kv_pages.shape[1], q.shape[2], q.element_size())
    work = plan.kept.get((heads, window))
    if not isinstance(work, DevicePlan):
        work = plan.kept[heads, window] = DevicePlan.build(plan, heads, window)
    return run(q, kv_pages, work, scale=scale, window=window, sinks=sinks)


def run(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    work: DevicePlan,
    *,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch a device plan built for this batch, shape and window.

    Args:
        out: contiguous, of q's shape and dtype; a new tensor by default.
    """
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for part in work.parts:
        grid = part.count * kv_pages.shape[1]
        _launch(part, work.table, out, q, kv_pages, scale, window, sinks, grid, graph=False)
    return out


def attend_graph(
    out: torch.Tensor,
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    plan: GraphPlan,
    *,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> None:
    """`attend` for capture: neither grid nor arguments depend on the batch.

    Args:
        out, q: [capacity.rows, heads, head_dim]; `out` is contiguous.
    """
    shape = (plan.capacity.rows, plan.heads.count, plan.heads.dim)
    for name, value in (("out", out), ("q", q)):
        if value.shape != shape or not (out.is_contiguous() and value.stride(2) == 1):
            raise ValueError(
                f"{name} has shape {list(value.shape)} and strides {value.stride()}; "
                f"expected {list(shape)}, out contiguous and q in its last dimension"
            )
    if kv_pages.shape[1] != plan.heads.kv_count or not whole_pages(kv_pages):
        raise ValueError(
            f"kv_pages has shape {list(kv_pages.shape)} and strides {kv_pages.stride()}; expected "
            f"[2, {plan.heads.kv_count}, pages, page_size, {plan.heads.dim}], the last two contiguous"
        )
    grid = GRID_PER_SM * _multiprocessors(q.device)
    _launch(plan.part, plan.table, out, q, kv_pages, scale, plan.window, sinks, grid, graph=True)


def _launch(
    part: Part,
    table: torch.Tensor,
    out: torch.Tensor,
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    scale: float,
    window: int,
    sinks: torch.Tensor | None,
    grid: int,
    *,
    graph: bool,
) -> None:
    rows, heads, head_dim = q.shape
    kv_heads = kv_pages.shape[1]
    attention_kernel[(grid,)](
        part.items,
        part.counts,
        q,
        q.stride(0),
        q.stride(1),
        kv_pages,
        kv_pages.stride(0),
        kv_pages.stride(1),
        kv_pages.stride(2),
        table,
        table.stride(0),
        out,
        part.partial,
        part.peaks,
        part.totals,
        out if sinks is None else sinks,
        scale,
        window,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_DIM=block_dim(head_dim),
        PAGE=kv_pages.shape[3],
        ROWS=part.tile.rows,
        KEYS=part.tile.keys,
        WINDOWED=window > 0,
        SPLIT=part.split,
        SINKS=sinks is not None,
        GRAPH=graph,
        num_warps=part.tile.warps,
        num_stages=part.tile.stages,
    )
    if part.split:
        combine_kernel[(rows, heads)](
            out,
            part.row_parts,
            part.partial,
            part.peaks,
            part.totals,
            out if sinks is None else sinks,
            HEADS=heads,
            HEAD_DIM=head_dim,
            BLOCK_DIM=block_dim(head_dim),
            SINKS=sinks is not None,
            num_warps=COMBINE_WARPS,
        )


COMBINE_WARPS = 1
"""A combine block handles one head of one row: at most 256 floats."""


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

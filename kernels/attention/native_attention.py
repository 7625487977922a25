"""A step's attention on the CPU in native code: decode rows and prefill chunks, in bf16."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from kernels import native
from kernels.attention.plan import AttentionPlan

KEYS: Final = 64
"""Keys per tile; the same as in prefill.h."""


class _Chunk(ctypes.Structure):
    """`Chunk` of kernels/native/prefill.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("row", "queries", "context", "begin")),
        ("slots", ctypes.c_void_p),
    )


class _Step(ctypes.Structure):
    """`Step` of kernels/native/kernels.cpp."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("slots", "bounds", "single_rows", "own", "chunks", "cos", "sin")
        ),
        *(
            (name, ctypes.c_int64)
            for name in (
                "rows",
                "singles",
                "chunk_count",
                "heads",
                "kv_heads",
                "head_dim",
                "turned",
                "num_slots",
                "window",
                "threads",
            )
        ),
        ("scale", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class StepArguments:
    """The native structure's address, and the objects that must outlive it."""

    address: int
    alive: tuple[object, ...]


def fits(q: torch.Tensor) -> bool:
    """Return True if the native code supports q: bf16 on a CPU, with head_dim a multiple of 32."""
    return (
        native.LIBRARY is not None
        and q.shape[0] > 0
        and q.is_cpu
        and q.dtype == torch.bfloat16
        and q.shape[2] % 32 == 0
        and native.dense_rows(q)
    )


def attend(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """`kernels.attention.attend` for q that `fits`; sinks float32, contiguous."""
    step = step_of(plan, q.shape[1], kv_pages, window, scale, None)
    out = torch.empty(q.shape, dtype=q.dtype)
    native.LIBRARY.graft_attend(  # type: ignore[union-attr]
        step.address,
        q.data_ptr(),
        q.stride(0),
        kv_pages.data_ptr(),
        None if sinks is None else sinks.data_ptr(),
        out.data_ptr(),
    )
    return out


def rotate_store_attend(
    qkv: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    kv_pages: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int,
) -> torch.Tensor:
    """For q that `fits`: rotate queries and keys in place, store keys and values at the plan's slots, and
    attend.

    Combines three calls, because at a single row each costs more overhead than computation.

    Args:
        qkv: [rows, heads + 2 * kv_heads, head_dim].
        angles: cos and sin as `kernels.rotary.rotate_` takes them.
        kv_pages: as `attend` takes them, contiguous.

    Returns:
        [rows, heads * head_dim].

    Raises:
        ValueError: mismatching arguments.
    """
    rows, stacked, head_dim = qkv.shape
    _, kv_heads, _, _, kv_dim = kv_pages.shape
    if kv_dim != head_dim or not kv_pages.is_contiguous() or not qkv.is_contiguous() or rows != plan.rows:
        raise ValueError(
            f"qkv has shape {list(qkv.shape)}, kv_pages {list(kv_pages.shape)}; expected "
            f"[{plan.rows}, heads + 2 * {kv_heads}, {kv_dim}] and pages, both contiguous"
        )
    heads = stacked - 2 * kv_heads
    step = step_of(plan, heads, kv_pages, window, scale, angles)
    out = torch.empty((rows, heads * head_dim), dtype=qkv.dtype)
    native.LIBRARY.graft_rotate_store_attend(  # type: ignore[union-attr]
        step.address, qkv.data_ptr(), kv_pages.data_ptr(), out.data_ptr()
    )
    return out


def step_of(
    plan: AttentionPlan,
    heads: int,
    kv_pages: torch.Tensor,
    window: int,
    scale: float,
    angles: tuple[torch.Tensor, torch.Tensor] | None,
) -> StepArguments:
    """Return the native arguments, computed once for all layers of a kind; the plan caches them."""
    key = ("native", heads, kv_pages.shape, window, scale, angles and angles[0].data_ptr())
    cached = plan.kept.get(key)
    if isinstance(cached, StepArguments):
        return cached
    view = plan.kept.get(("seen", window))
    if not isinstance(view, _Visible):
        view = plan.kept["seen", window] = _visible(plan, window)
    tables = () if angles is None else tuple(angle.contiguous() for angle in angles)
    _, kv_heads, pages, page_size, head_dim = kv_pages.shape
    step = _Step(
        view.slots.ctypes.data,
        view.bounds.ctypes.data,
        view.singles.ctypes.data,
        plan.slots.data_ptr(),
        ctypes.addressof(view.chunks),
        *((table.data_ptr() for table in tables) if tables else (None, None)),
        plan.rows,
        len(view.singles),
        len(view.chunks),
        heads,
        kv_heads,
        head_dim,
        tables[0].shape[-1] if tables else 0,
        pages * page_size,
        window,
        torch.get_num_threads(),
        scale,
    )
    cached = plan.kept[key] = StepArguments(ctypes.addressof(step), (step, view, tables, angles, plan.slots))
    return cached


@dataclass(frozen=True, slots=True)
class _Visible:
    """The slots that a step's sequences attend to under a window.

    Attributes:
        slots: those of single queries, concatenated, followed by those of chunks.
        bounds: where each single query's slots begin, and where the last one's end.
        singles: the rows of single queries.
    """

    slots: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]
    singles: npt.NDArray[np.int64]
    chunks: ctypes.Array[_Chunk]


def _visible(plan: AttentionPlan, window: int) -> _Visible:
    parts: list[npt.NDArray[np.int64]] = []
    chunk_parts: list[npt.NDArray[np.int64]] = []
    rows: list[int] = []
    chunks: list[tuple[int, int, int, int]] = []
    row = 0
    for sequence, (queries, context) in enumerate(zip(plan.query_lens, plan.context_lens, strict=True)):
        first = max(0, context - queries - window + 1) if window else 0
        if queries == 1:
            rows.append(row)
            parts.append(_slots(plan, sequence, first))
        elif queries:
            first = first // KEYS * KEYS
            chunks.append((row, queries, context, first))
            chunk_parts.append(_slots(plan, sequence, first))
        row += queries
    bounds = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    slots = np.concatenate([np.empty(0, dtype=np.int64), *parts, *chunk_parts])
    starts = bounds[-1] + np.cumsum([0, *map(len, chunk_parts)], dtype=np.int64)
    held = (_Chunk * len(chunks))(
        *(
            _Chunk(*chunk, slots.ctypes.data + int(start) * slots.itemsize)
            for chunk, start in zip(chunks, starts[:-1], strict=True)
        )
    )
    return _Visible(slots, bounds, np.array(rows, dtype=np.int64), held)


def _slots(plan: AttentionPlan, sequence: int, first: int) -> npt.NDArray[np.int64]:
    """Return the slots of a sequence's tokens from position `first` on."""
    size, context = plan.page_size, plan.context_lens[sequence]
    held = np.array(plan.pages[sequence][first // size : -(-context // size)], dtype=np.int64)
    slots = (held[:, None] * size + np.arange(size)).reshape(-1)
    return slots[first % size : first % size + context - first]

"""Decode steps of the CPU in native code: one query a sequence, in bf16."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from kernels import native
from kernels.attention.buckets import seen_slots
from kernels.attention.plan import AttentionPlan


class _Step(ctypes.Structure):
    """`Step` of kernels/native/kernels.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("slots", "bounds", "own", "cos", "sin")),
        *(
            (name, ctypes.c_int64)
            for name in ("rows", "heads", "kv_heads", "head_dim", "turned", "num_slots", "threads")
        ),
        ("scale", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """The structure's address, and what must live as long as it does."""

    address: int
    alive: tuple[object, ...]


def fits(q: torch.Tensor) -> bool:
    """Whether q is on a CPU and in a form that the native code takes."""
    return (
        native.LIBRARY is not None
        and q.is_cpu
        and q.dtype == torch.bfloat16
        and q.shape[2] % 32 == 0
        and native.dense_rows(q)
    )


def decodes(plan: AttentionPlan, q: torch.Tensor) -> bool:
    """Whether this step is one query a sequence, and `fits`."""
    return fits(q) and 0 < q.shape[0] == len(plan.query_lens) and 0 not in plan.query_lens


def attend(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """`kernels.attention.attend` where `decodes`; sinks float32, contiguous."""
    step = _step(plan, q.shape[1], kv_pages, window, scale, None)
    out = torch.empty(q.shape, dtype=q.dtype)
    native.LIBRARY.graft_attend(  # type: ignore[union-attr]
        step.address, q.data_ptr(), q.stride(0), kv_pages.data_ptr(),
        None if sinks is None else sinks.data_ptr(), out.data_ptr(),
    )  # fmt: skip
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
    """Where `decodes`: turns queries and keys in place, stores keys and values at the plan's slots, attends.

    Three calls in one: at a single row each costs more to make than to carry out.

    Args:
        qkv: [rows, heads + 2 * kv_heads, head_dim].
        angles: cos and sin as `kernels.rotary.rotate_` takes them.
        kv_pages: as `attend` takes them, contiguous.

    Returns:
        [rows, heads * head_dim].

    Raises:
        ValueError: arguments that do not fit each other.
    """
    rows, stacked, head_dim = qkv.shape
    _, kv_heads, _, _, kv_dim = kv_pages.shape
    if kv_dim != head_dim or not kv_pages.is_contiguous() or not qkv.is_contiguous() or rows != plan.rows:
        raise ValueError(
            f"qkv has shape {list(qkv.shape)}, kv_pages {list(kv_pages.shape)}; expected "
            f"[{plan.rows}, heads + 2 * {kv_heads}, {kv_dim}] and pages, both contiguous"
        )
    heads = stacked - 2 * kv_heads
    step = _step(plan, heads, kv_pages, window, scale, angles)
    out = torch.empty((rows, heads * head_dim), dtype=qkv.dtype)
    native.LIBRARY.graft_decode(  # type: ignore[union-attr]
        step.address, qkv.data_ptr(), kv_pages.data_ptr(), out.data_ptr()
    )
    return out


def _step(
    plan: AttentionPlan,
    heads: int,
    kv_pages: torch.Tensor,
    window: int,
    scale: float,
    angles: tuple[torch.Tensor, torch.Tensor] | None,
) -> _Kept:
    """Worked out once for all layers that are alike."""
    key = ("native", heads, kv_pages.shape, window, scale, angles and angles[0].data_ptr())
    kept = plan.kept.get(key)
    if isinstance(kept, _Kept):
        return kept
    seen = plan.kept.get(("seen", window))
    if not isinstance(seen, tuple):
        seen = plan.kept["seen", window] = seen_slots(plan, window)
    held: tuple[torch.Tensor, ...] = (*seen, plan.slots)
    if angles is not None:
        held += tuple(angle.contiguous() for angle in angles)
    _, kv_heads, pages, page_size, head_dim = kv_pages.shape
    step = _Step(
        *(tensor.data_ptr() for tensor in held), *(None for _ in range(5 - len(held))),
        plan.rows, heads, kv_heads, head_dim, angles[0].shape[-1] if angles else 0, pages * page_size,
        torch.get_num_threads(), scale,
    )  # fmt: skip
    kept = plan.kept[key] = _Kept(ctypes.addressof(step), (step, held, angles))
    return kept

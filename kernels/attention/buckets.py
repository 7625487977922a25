"""How a batch is cut into calls on the CPU: worked out once per step and window, used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from kernels.attention.plan import AttentionPlan

CALL_BYTES: Final = 1 << 20
"""Keys and values that take about as long as one more call; 0.5 to 2 MB measured alike, 64 KB slower."""

GATHER_BYTES: Final = 8 << 20
"""Keys and values gathered at a time. What is gathered is read at once, out of the cache; buffers beyond
32 MB were 3-9 times slower, most of it page faults."""

VIEW_BYTES: Final = 512 << 10
"""Keys and values from which a sequence in consecutive pages is read where it lies, by a call of its own."""

Slots = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

WINDOW_ROWS: Final = 128
"""Rows of a prefill chunk that share a call under a sliding window, at least; the window itself if larger."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows that one call serves: one query each of several sequences, or many of one.

    Attributes:
        rows: which rows of q.
        sequences: how many.
        slots: where their keys lie: int64 [sequences * width], or consecutive ones of a single sequence.
        mask: 0 or -inf, added to scores: [sequences, 1, 1, width] of single queries, else [rows, width].
        causal: row i sees the keys 0 to i, and there are as many of both.
    """

    rows: slice | torch.Tensor
    sequences: int
    slots: slice | torch.Tensor
    mask: torch.Tensor | None
    causal: bool


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows `row` to `stop` of q, whose last sees the keys `first` to `last` - 1 of `sequence`."""

    sequence: int
    row: int
    stop: int
    first: int
    last: int

    @property
    def keys(self) -> int:
        return self.last - self.first


def buckets(plan: AttentionPlan, window: int, key_bytes: int, dtype: torch.dtype) -> list[Bucket]:
    """Group the sequences of a batch into attention calls with keys of similar length.

    Args:
        window: keys that a query sees, its own included; 0 for all.
        key_bytes: bytes of one token's key and value in all kv heads.
        dtype: data type of the masks.
    """
    single: list[_Span] = []
    calls: list[Bucket] = []
    row = 0
    for sequence, (queries, context) in enumerate(zip(plan.query_lens, plan.context_lens, strict=True)):
        if queries == 1:
            single.append(_Span(sequence, row, row + 1, max(0, context - window) if window else 0, context))
        elif queries:
            calls += [
                _chunk(plan, part, window, dtype) for part in _parts(sequence, row, queries, context, window)
            ]
        row += queries
    for spans in _grouped(plan, single, key_bytes):
        calls.append(_decode(plan, spans, dtype))
    return calls


def _parts(sequence: int, row: int, queries: int, context: int, window: int) -> list[_Span]:
    """One span, or under a window as many as spare the keys before it."""
    step = max(WINDOW_ROWS, window) if window else queries
    start = context - queries
    return [
        _Span(
            sequence,
            row + at,
            row + min(at + step, queries),
            max(0, start + at - window + 1) if window else 0,
            start + min(at + step, queries),
        )
        for at in range(0, queries, step)
    ]


def _chunk(plan: AttentionPlan, span: _Span, window: int, dtype: torch.dtype) -> Bucket:
    count = span.stop - span.row
    slots = _consecutive(plan, span) or _tensor(plan, _slots(plan, [span])[0])
    if span.keys == count and (not window or count <= window):
        return Bucket(slice(span.row, span.stop), 1, slots, None, causal=True)
    key = torch.arange(span.keys, device=plan.device)
    query = key[span.keys - count :].unsqueeze(1)
    hidden = key > query
    if window:
        hidden |= key <= query - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=plan.device).masked_fill_(hidden, float("-inf"))
    return Bucket(slice(span.row, span.stop), 1, slots, mask, causal=False)


def _grouped(plan: AttentionPlan, spans: Sequence[_Span], key_bytes: int) -> list[list[_Span]]:
    """Sequences of about one length together: keys that pad a group cost no more than one more call."""
    groups: list[list[_Span]] = []
    padding = 0
    open_group = False
    for span in sorted(spans, key=lambda span: -span.keys):
        alone = span.keys * key_bytes >= VIEW_BYTES and _consecutive(plan, span) is not None
        if open_group and not alone:
            longest, count = groups[-1][0].keys, len(groups[-1]) + 1
            padding += longest - span.keys
            if padding * key_bytes <= CALL_BYTES and count * longest * key_bytes <= GATHER_BYTES:
                groups[-1].append(span)
                continue
        groups.append([span])
        padding, open_group = 0, not alone
    return groups


def _decode(plan: AttentionPlan, spans: list[_Span], dtype: torch.dtype) -> Bucket:
    spans.sort(key=lambda span: span.row)
    rows: slice | torch.Tensor = slice(spans[0].row, spans[-1].stop)
    if spans[-1].stop - spans[0].row != len(spans):
        rows = _tensor(plan, np.array([span.row for span in spans]))
    if len(spans) == 1 and (consecutive := _consecutive(plan, spans[0])):
        return Bucket(rows, 1, consecutive, None, causal=False)
    slots = _slots(plan, spans)
    counts = np.array([span.keys for span in spans])
    mask = None
    if counts.min() < slots.shape[1]:
        hidden = _tensor(plan, np.arange(slots.shape[1]) >= counts[:, None])
        mask = torch.zeros(hidden.shape, dtype=dtype, device=plan.device).masked_fill_(hidden, float("-inf"))
        mask = mask.view(len(spans), 1, 1, -1)
    return Bucket(rows, len(spans), _tensor(plan, slots.reshape(-1)), mask, causal=False)


def _slots(plan: AttentionPlan, spans: Sequence[_Span]) -> Slots:
    """[spans, most keys]; a shorter span repeats its last slot, so that no one else's is ever read."""
    size = plan.page_size
    held = [plan.pages[span.sequence][span.first // size : -(-span.last // size)] for span in spans]
    width = max(map(len, held))
    table = np.array([[*pages, *[0] * (width - len(pages))] for pages in held], dtype=np.int64)
    skipped = np.array([[span.first % size] for span in spans])
    counts = np.array([[span.keys] for span in spans])
    at = skipped + np.minimum(np.arange(counts.max()), counts - 1)
    slots: Slots = np.take_along_axis(table, at // size, axis=1) * size + at % size
    return slots


def _consecutive(plan: AttentionPlan, span: _Span) -> slice | None:
    """The span's slots where its pages follow one another in memory."""
    size = plan.page_size
    first, last = span.first // size, -(-span.last // size)
    pages = plan.pages[span.sequence]
    if any(pages[at] + 1 != pages[at + 1] for at in range(first, last - 1)):
        return None
    start = (pages[first] - first) * size
    return slice(start + span.first, start + span.last)


def _tensor(plan: AttentionPlan, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
    return torch.from_numpy(values).to(plan.device)

"""Cuts a batch into batched products of equal shape: on the host, once per batch and layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from kernels.lora.layout import Layout, RankClass
from kernels.lora.segments import Ints, Segments


@dataclass(frozen=True, slots=True)
class Group:
    """Adapters side by side in one stack, with `rows` rows each.

    Attributes:
        stack: index of the rank class.
        members: places in the stack.
        rows: rows per adapter, those that only fill up included.
        span: the group's rows where they lie side by side in the batch and none fills up, else None.
        taken: int64 [adapters * rows], the batch's row for each of the group's.
        kept: int64, which of them count; None where all do.
        targets: int64, the batch's rows that change, one for each that counts.
    """

    stack: int
    members: slice
    rows: int
    span: slice | None
    taken: torch.Tensor
    kept: torch.Tensor | None
    targets: torch.Tensor

    @property
    def adapters(self) -> int:
        return int(self.members.stop - self.members.start)


def group(segments: Segments, layout: Layout) -> tuple[Group, ...]:
    """Every row that has weights in this layout, once.

    Raises:
        ValueError: the batch names an adapter that the layout lacks.
    """
    adapters = len(layout.ranks[0])
    if len(segments.count) > adapters:
        raise ValueError(f"segments name adapter {len(segments.count) - 1}; expected less than {adapters}")
    counts = np.zeros(adapters, dtype=np.int64)
    counts[: len(segments.count)] = segments.count
    first = np.cumsum(counts) - counts
    device = segments.row_adapter.device
    groups: list[Group] = []
    for stack, rank_class in enumerate(layout.classes):
        members = np.array(rank_class.adapters)
        for places, served in _ranges(counts[members], layout, rank_class):
            groups.append(_group(stack, places, first[members[places]], served, segments.order, device))
    return tuple(groups)


def _ranges(counts: Ints, layout: Layout, rank_class: RankClass) -> Iterator[tuple[slice, Ints]]:
    """Ranges of the stack that one product serves, and the rows that each adapter inside has in it.

    An adapter with none is computed for nothing, where that costs less than a product more.
    """
    if not counts.any():
        return
    elements = layout.elements(rank_class.ranks)
    stream = elements * layout.dtype.itemsize / layout.cost.stream
    work = 2 * elements / layout.cost.flops
    shared = _shared_rows(counts, layout.launches(), stream, work)
    heavy = counts > shared
    for place in np.flatnonzero(heavy):
        yield slice(int(place), int(place) + 1), counts[place : place + 1]
    light = np.flatnonzero((counts > 0) & ~heavy)
    if not len(light):
        return
    gaps = np.diff(light) - 1
    cuts = np.flatnonzero(gaps * max(stream, shared * work) > layout.launches())
    served = np.where(heavy, 0, counts)
    for run in np.split(light, cuts + 1):
        places = slice(int(run[0]), int(run[-1]) + 1)
        yield places, served[places]


def _shared_rows(counts: Ints, launch: float, stream: float, work: float) -> int:
    """Up to how many rows an adapter is filled up to the others' number rather than computed alone."""
    some = counts[counts > 0]
    options = np.unique(some)
    heavy = some > options[:, None]
    alone = (heavy * (launch + np.maximum(stream, some * work))).sum(1)
    shared = launch + (~heavy).sum(1) * np.maximum(stream, options * work)
    return int(options[(alone + shared).argmin()])


def _group(stack: int, places: slice, first: Ints, served: Ints, order: Ints, device: torch.device) -> Group:
    rows = int(served.max())
    place = np.arange(rows)
    real = (place < served[:, None]).reshape(-1)
    taken = np.where(real, (first[:, None] + place).reshape(-1), first[served.argmax()])
    taken = order[taken]
    full = bool(real.all())
    start, stop = int(taken[0]), int(taken[-1]) + 1
    side_by_side = full and stop - start == len(taken) and bool((np.diff(taken) == 1).all())
    return Group(
        stack,
        places,
        rows,
        slice(start, stop) if side_by_side else None,
        torch.from_numpy(taken).to(device),
        None if full else torch.from_numpy(np.flatnonzero(real)).to(device),
        torch.from_numpy(taken[real]).to(device),
    )

"""Which rows of a batch belong to which adapter: worked out once per batch, used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

LONG_RUN = 32
"""Rows from which a run of one adapter gets its own two GEMMs instead of sharing the masked ones.

Below it the launch of two more GEMMs per slice (about 25 us) costs more than the columns that the mask
throws away; above it those columns grow with rows x sum of ranks.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows `start` to `stop` (exclusive), all of one adapter (or of none, -1)."""

    start: int
    stop: int
    adapter: int

    @property
    def long(self) -> bool:
        return self.stop - self.start >= LONG_RUN


@dataclass(frozen=True, slots=True)
class Segments:
    """The grouping of a batch's rows by adapter.

    Attributes:
        row_adapter: int64 [rows], index of the row's adapter in the batch's adapters, -1 for none.
        runs: long runs of rows that share an adapter, in row order.
        short: row ranges that remain, merged where they touch; each holds at least one adapter's row.
        short_adapters: `row_adapter` of each range of `short`, shaped [rows, 1] for the mask.
    """

    row_adapter: torch.Tensor
    runs: tuple[Run, ...]
    short: tuple[slice, ...]
    short_adapters: tuple[torch.Tensor, ...]
    masks: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict, compare=False, repr=False)
    """Column masks by (short range, id of a column layout): layers of one layout share them."""
    adapters: tuple[int, ...] = ()
    """`row_adapter` as the host knows it."""
    plans: dict[object, object] = field(default_factory=dict, compare=False, repr=False)
    """What a device's implementation worked out for these rows, by layer shape."""

    @classmethod
    def of(cls, row_adapter: Sequence[int], device: torch.device | str = "cpu") -> Segments:
        """Groups rows given as adapter indices (-1 for none)."""
        rows = torch.tensor(row_adapter, dtype=torch.int64, device=device)
        runs = _runs(row_adapter)
        short = _merge(runs)
        long = tuple(run for run in runs if run.long and run.adapter >= 0)
        short_adapters = tuple(rows[part].unsqueeze(1) for part in short)
        return cls(rows, long, short, short_adapters, adapters=tuple(row_adapter))

    @property
    def empty(self) -> bool:
        """True when no row has an adapter, so that a layer has nothing to add."""
        return not self.runs and not self.short

    def mask(self, part: int, owner: torch.Tensor) -> torch.Tensor:
        """Bool [rows of short[part], columns]: True where the column is NOT of the row's adapter.

        Args:
            owner: int64 [columns], adapter index of each column; one object per layout.
        """
        key = (part, id(owner))
        if key not in self.masks:
            self.masks[key] = self.short_adapters[part] != owner
        return self.masks[key]


def _runs(row_adapter: Sequence[int]) -> list[Run]:
    runs: list[Run] = []
    start = 0
    for row in range(1, len(row_adapter) + 1):
        if row == len(row_adapter) or row_adapter[row] != row_adapter[start]:
            runs.append(Run(start, row, row_adapter[start]))
            start = row
    return runs


def _merge(runs: Sequence[Run]) -> tuple[slice, ...]:
    """Joins short runs into ranges that no long run interrupts; rows without adapter inside are masked."""
    ranges: list[slice] = []
    joinable = False
    for run in runs:
        if run.long:
            joinable = False
        elif run.adapter >= 0:
            start = ranges.pop().start if joinable else run.start
            ranges.append(slice(start, run.stop))
            joinable = True
    return tuple(ranges)

"""Groups a batch's rows by adapter, once per batch for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from kernels.lora.layout import Ints
from kernels.transfer import to_device


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The grouping of a batch's rows by adapter.

    Attributes:
        row_adapter: int64 [rows], index of the row's adapter in the batch's adapters, -1 for none.
        adapters: `row_adapter` on the host.
        order: rows with an adapter, sorted by adapter, then by row.
        count: rows of each adapter, up to the highest index in the batch.
        plans: cache of implementations for these rows, by layout or shape of layer.
    """

    row_adapter: torch.Tensor
    adapters: tuple[int, ...]
    order: Ints
    count: Ints
    plans: dict[object, object] = field(default_factory=dict, repr=False)

    @classmethod
    def group(cls, row_adapter: Sequence[int], device: torch.device | str = "cpu") -> Segments:
        """Group rows given as adapter indices (-1 for none)."""
        host = np.asarray(row_adapter, dtype=np.int64).reshape(-1)
        owned = np.flatnonzero(host >= 0)
        adapter = host[owned]
        order = owned[np.argsort(adapter, kind="stable")]
        rows = to_device(host.copy(), torch.device(device))
        return cls(rows, tuple(row_adapter), order, np.bincount(adapter))

    @property
    def empty(self) -> bool:
        """True when no row has an adapter, so that a layer has nothing to add."""
        return not len(self.order)

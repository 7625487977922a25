"""Tasks of a part; each makes one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
"""One result, as in the JSON."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The device's measured ceilings in this run.

    Attributes:
        bandwidth: bytes/s of a device-to-device copy, counting bytes read and bytes written.
        matmul: FLOP/s of a bf16 matrix product.
    """

    bandwidth: float
    matmul: float

    def roofline_us(self, nbytes: float, flops: float) -> float:
        """Return the least microseconds for moving these bytes and doing these operations."""
        return max(nbytes / self.bandwidth, flops / self.matmul) * 1e6


@dataclass(frozen=True, slots=True)
class Bench:
    """A task's environment; `out` is the report's folder, for additional files."""

    device: torch.device
    quick: bool
    ceilings: Ceilings
    out: Path


@dataclass(frozen=True, slots=True)
class Task:
    """A task that makes one row.

    Attributes:
        key: names the row; `--resume` skips rows that the JSON already has.
        inputs: description of the row, as in the JSON.
        run: makes the row's results. A result with `passed` False fails the run.
        environment: variables that must be set when the process starts.
        limit_s: seconds after which the process counts as hung.
    """

    key: str
    inputs: Mapping[str, Any]
    run: Callable[[Bench], Row]
    environment: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 90.0


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the closing table.

    Attributes:
        met: None where the required figures were not measured, or not on a GPU.
    """

    name: str
    value: str
    met: bool | None

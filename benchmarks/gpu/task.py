"""What a part is made of: tasks, each of which makes one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
"""One result as JSON holds it."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device reached in this run.

    Attributes:
        bandwidth: bytes/s of a device-to-device copy, bytes read and bytes written both counted.
        matmul: FLOP/s of a bf16 matrix product.
    """

    bandwidth: float
    matmul: float

    def roofline_us(self, nbytes: float, flops: float) -> float:
        """The least time in which this device could move so many bytes and do so many operations."""
        return max(nbytes / self.bandwidth, flops / self.matmul) * 1e6


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a task runs; `out` is the report's folder, for what is more than a row."""

    device: torch.device
    quick: bool
    ceilings: Ceilings
    out: Path


@dataclass(frozen=True, slots=True)
class Task:
    """One row to be.

    Attributes:
        key: names the row; `--resume` leaves out what the JSON already has.
        inputs: what the row is about, as it stands in the JSON.
        run: makes the row's results. A result `passed` of False fails the run.
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
        met: None where the figures needed were not measured, or not on a GPU.
    """

    name: str
    value: str
    met: bool | None

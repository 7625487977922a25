"""Copies between host and device that do not make the host wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy.typing as npt
import torch


def to_device(values: npt.NDArray[Any] | torch.Tensor, device: torch.device) -> torch.Tensor:
    """The values on the device, in the order of its current stream; on a CPU the same memory.

    Only from pinned memory does a copy not wait; the allocator keeps that until the copy is done.
    """
    host = values if isinstance(values, torch.Tensor) else torch.from_numpy(values)
    if device.type != "cuda" or host.is_cuda:
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A tensor on its way to the host."""

    _host: torch.Tensor
    _done: torch.cuda.Event | None

    @classmethod
    def start(cls, tensor: torch.Tensor) -> Self:
        """Begins once the work that is in the stream by now is done; the tensor may change afterwards."""
        if not tensor.is_cuda:
            return cls(tensor, None)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return cls(host, done)

    def wait(self) -> torch.Tensor:
        """The values; waits for this copy alone, not for what was begun after it."""
        if self._done is not None:
            self._done.synchronize()
        return self._host

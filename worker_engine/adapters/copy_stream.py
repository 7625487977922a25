"""Copies to the device beside its computing: in order among themselves, waited for one by one."""

from __future__ import annotations

import time
from typing import Any, Protocol, Self, TypeVar

import torch


class Arrival(Protocol):
    """A point in a stream of copies."""

    def wait(self) -> None:
        """What the device is given to compute from now on waits for the copies before this point; the host
        does not."""

    @property
    def done(self) -> bool:
        """Whether the copies are done."""

    def seconds_since(self, earlier: Self) -> float:
        """Time between two points that are done."""


Point = TypeVar("Point", bound=Arrival, covariant=True)


class CopyStream(Protocol[Point]):
    """Where copies are queued."""

    def begin(self) -> Point:
        """The copies that follow wait for all that the device has been given to compute so far: that may
        still read what they overwrite."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queues one copy; `source` must not change until it is done."""

    def mark(self) -> Point:
        """A point behind the copies so far."""


class CudaArrival:
    """A CUDA event on the side stream."""

    def __init__(self, stream: Any) -> None:
        self.event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def wait(self) -> None:
        self.event.wait(torch.cuda.current_stream())

    @property
    def done(self) -> bool:
        return bool(self.event.query())

    def seconds_since(self, earlier: Self) -> float:
        return float(earlier.event.elapsed_time(self.event)) / 1000


class CudaCopies:
    """A side stream. Copies out of pinned memory run while the device computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self) -> CudaArrival:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return self.mark()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> CudaArrival:
        return CudaArrival(self._stream)


class HostArrival:
    """A point that is passed already."""

    def __init__(self) -> None:
        self.time = time.perf_counter()

    def wait(self) -> None:
        pass

    @property
    def done(self) -> bool:
        return True

    def seconds_since(self, earlier: Self) -> float:
        return self.time - earlier.time


class HostCopies:
    """Copies at once, for memory that the host computes on."""

    def begin(self) -> HostArrival:
        return HostArrival()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def mark(self) -> HostArrival:
        return HostArrival()


def copies_to(device: torch.device) -> CopyStream[Any]:
    """The kind that suits the device."""
    return CudaCopies(device) if device.type == "cuda" else HostCopies()

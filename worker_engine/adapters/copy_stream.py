"""Copies to the device that overlap with its computation. They run in order and are awaited one by one."""

from __future__ import annotations

import time
from typing import Any, Protocol, Self, TypeVar

import torch


class Arrival(Protocol):
    """A position in a stream of copies."""

    def wait(self) -> None:
        """Make later device work wait for the copies before this point; the host does not block."""

    @property
    def done(self) -> bool:
        """True once the copies before this point have finished."""

    def seconds_since(self, earlier: Self) -> float:
        """Seconds between two finished points."""


Point = TypeVar("Point", bound=Arrival, covariant=True)


class CopyStream(Protocol[Point]):
    """A queue of copies to one device."""

    def begin(self) -> Point:
        """Return the current point, and make later copies wait for all device work queued so far.

        That work may still read the memory that the copies overwrite.
        """

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue one copy; `source` must not change until it is done."""

    def mark(self) -> Point:
        """Return the point after all copies queued so far."""


class CudaArrival:
    """A CUDA event on the copy stream."""

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
    """Copies on a side stream; those from pinned memory overlap with computation."""

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
    """A point that has already been reached."""

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
    """Synchronous copies, for memory that the host computes on."""

    def begin(self) -> HostArrival:
        return HostArrival()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def mark(self) -> HostArrival:
        return HostArrival()


def copies_to(device: torch.device) -> CopyStream[Any]:
    """Return the implementation that suits the device."""
    return CudaCopies(device) if device.type == "cuda" else HostCopies()

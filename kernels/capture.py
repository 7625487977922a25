"""Work recorded once and repeated over the same tensors: CUDA graphs, and the same promise without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import torch

T = TypeVar("T")

WARM_UPS: Final = 2
"""Runs before a capture: kernels are compiled and libraries take their workspaces outside of it."""


class Captures(Protocol):
    """Records functions; their recordings share memory, so a result lasts until the next replay of any."""

    def capture(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Runs `function` once or more, and records it.

        It must not wait for the device, and must read and write tensors that stay where they are.

        Returns:
            What it returned, whose tensors each replay writes anew, and the replay.
        """


class CudaGraphs:
    """CUDA graphs that share one pool of memory, replayed on the stream that is current then.

    They must be replayed on one stream: a recording's memory is the others' as well.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # One for warm-ups and captures: cuBLAS has a workspace for each stream, which must be there before.
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                function()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads pin adapters' memory meanwhile, which a capture in another mode would forbid.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                result = function()
        finally:
            # `torch.cuda.graph` leaves its stream behind as the current one when a capture is invalidated.
            torch.cuda.set_stream(current)
        return result, graph.replay


class Reruns:
    """Runs the function again into the tensor that its first run returned: what tests on a CPU replay."""

    def capture(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        result = function()

        def replay() -> None:
            again = function()
            if isinstance(result, torch.Tensor) and isinstance(again, torch.Tensor):
                result.copy_(again)

        return result, replay


def captures_for(device: torch.device) -> Captures:
    return CudaGraphs() if device.type == "cuda" else Reruns()

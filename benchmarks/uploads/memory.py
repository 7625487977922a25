"""The most memory that a process and its children have held, by the kernel's own high-water marks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from benchmarks.processes import family, memory_mib

_EVERY_S: Final = 0.1


class PeakMemory:
    """Sums the marks (VmHWM) of all processes of a family that live at once, again and again.

    A mark outlives what it was reached by, so the sum is never below the family's true peak; of a process
    that dies only what it reached in its last tenth of a second can be missed.
    """

    def __init__(self, root: Callable[[], int | None]) -> None:
        """`root` names the process that the others descend from; None while there is none."""
        self._root, self._stop, self.mib = root, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            if (pid := self._root()) is not None:
                self.mib = max(self.mib, sum(memory_mib(each, "VmHWM") for each in family(pid)))

"""The most memory that a process and its children have held, by the kernel's own high-water marks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

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
                self.mib = max(self.mib, sum(map(_mark_mib, _family(pid))))


def _family(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        try:
            text = Path(f"/proc/{each}/task/{each}/children").read_text()
        except OSError:
            continue
        found += [int(child) for child in text.split()]
    return found


def _mark_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)

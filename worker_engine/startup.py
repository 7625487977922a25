"""Durations of the phases of this process's start, from its creation to its first token."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, Literal

PHASES: Final = ("process", "imports", "native_libraries", "tokenizer", "weights", "warm_up", "listen")
"""In order: the interpreter and the flags; Python's modules; the compiled CPU loops, compiling them included;
the tokenizer; the checkpoint's weights and the KV cache; a first step; the HTTP server.
"""
Kind = Literal["fresh", "template"]


class Startup:
    """Records when each phase ends; the time since the previous end belongs to the phase.

    Times are of CLOCK_BOOTTIME, which all processes of a machine share.

    Attributes:
        kind: `template` if forked from a process that had imported everything.
        seconds: by phase, for those that have ended.
        first_token: seconds from the first request's arrival to its first token; None before.
    """

    def __init__(self, kind: Kind = "fresh", *, began: float | None = None) -> None:
        """`began`: when the process that requested this worker started; by default this process's start."""
        self.kind: Final = kind
        self.seconds: dict[str, float] = {}
        self.first_token: float | None = None
        self._last = process_began() if began is None else began

    def end(self, phase: str) -> None:
        """End the phase now; repeated calls for a phase add up."""
        now = boot_clock()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + max(0.0, now - self._last)
        self._last = now

    @property
    def total(self) -> float:
        """Seconds to the end of the last recorded phase."""
        return sum(self.seconds.values())

    def report(self) -> dict[str, object]:
        """Return the times in seconds, for `/health` and the log."""
        body: dict[str, object] = {
            "kind": self.kind,
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
            "total": round(self.total, 4),
        }
        if self.first_token is not None:
            body["first_token"] = round(self.first_token, 4)
        return body


def boot_clock() -> float:
    """Return seconds since the machine started; the monotonic clock where that is unavailable."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def process_began() -> float:
    """Return when this process started, to a hundredth of a second (Linux); elsewhere, now."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return boot_clock()

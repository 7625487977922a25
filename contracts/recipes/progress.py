"""Events of a running optimization job: one JSON object a line on stdout. Standard library only.

    {"event": "phase", "phase", "step", "steps"}
    {"event": "progress", "phase", "percent", "eta_seconds", "message"}
    {"event": "log", "level", "message"}
    {"event": "result", ...}
    {"event": "error", "code", "message", "resumable", "reasons"}

Each has `time`, seconds since 1970. Percent and ETA are the whole job's; `eta_seconds` is null while it is
unknown. A result or an error is the last line, and the exit status agrees with it (`EXIT_STATUS`). A job
that ends without one was killed, and resumes when it is started again.
"""

from __future__ import annotations

import enum
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

_LEAST_SECONDS: Final = 0.2
"""Least time between two progress lines."""
_TELLING_PERCENT: Final = 2.0
"""Percent of its own work that a run must have done before it states an ETA."""
MAX_LINE: Final = 1 << 20
MAX_MESSAGE: Final = 4000
LEVELS: Final = ("info", "warning")


class Code(enum.StrEnum):
    """Why a job ended without a result."""

    FAILED = "failed"
    BAD_ORDER = "bad_order"
    BAD_DATA = "bad_data"
    INCOMPATIBLE = "incompatible"
    UNSUPPORTED_MODEL = "unsupported_model"
    UNSUPPORTED_MACHINE = "unsupported_machine"
    SOURCE_CHANGED = "source_changed"
    OUTPUT_EXISTS = "output_exists"
    OUTPUT_DAMAGED = "output_damaged"
    BUSY = "busy"
    OUT_OF_DISK = "out_of_disk"
    OUT_OF_MEMORY = "out_of_memory"
    WORKER_FAILED = "worker_failed"
    CANCELLED = "cancelled"


EXIT_STATUS: Final[Mapping[Code, int]] = {
    Code.FAILED: 1,
    Code.BAD_ORDER: 2,
    Code.BAD_DATA: 3,
    Code.INCOMPATIBLE: 4,
    Code.UNSUPPORTED_MODEL: 5,
    Code.UNSUPPORTED_MACHINE: 6,
    Code.SOURCE_CHANGED: 7,
    Code.OUTPUT_EXISTS: 8,
    Code.OUTPUT_DAMAGED: 9,
    Code.BUSY: 10,
    Code.OUT_OF_DISK: 11,
    Code.OUT_OF_MEMORY: 12,
    Code.WORKER_FAILED: 13,
    Code.CANCELLED: 14,
}
"""Exit status by code; 0 is a result. No status equals a signal's number + 128, as of a killed process."""
RESUMABLE: Final = frozenset(
    {Code.FAILED, Code.BUSY, Code.OUT_OF_DISK, Code.OUT_OF_MEMORY, Code.WORKER_FAILED, Code.CANCELLED}
)
"""Codes after which the same command may succeed later, and resumes where it stopped."""


class JobError(Exception):
    """A job cannot go on.

    Attributes:
        reasons: several reasons, each as {"code", "text"}.
    """

    def __init__(self, code: Code, message: str, reasons: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.code, self.reasons = code, tuple(reasons)


class Cancelled(KeyboardInterrupt):
    """SIGTERM, SIGINT, or the reader of the events has closed the pipe.

    Not an `Exception`, so that no library swallows it. Event loops let a KeyboardInterrupt through, but keep
    other exceptions for the task that raised them.
    """


class ProgressError(ValueError):
    """The line is not an event; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a job, with its share of the job's time relative to the other parts."""

    name: str
    weight: float = 1.0


class Reporter:
    """Writes events to a stream; thread-safe."""

    def __init__(
        self, out: IO[str], phases: Sequence[Phase], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out, self._phases, self._clock = out, tuple(phases), clock
        self._lock = threading.Lock()
        self._at, self._percent, self._told = -1, 0.0, -1.0
        self._began, self._inherited = clock(), 0.0

    def phase(self, name: str) -> None:
        """Start the phase `name`, the next of that name if several have it; all earlier phases are done.

        Raises:
            Cancelled: the reader has closed the stream.
            ValueError: the job has no such phase.
        """
        names = [phase.name for phase in self._phases]
        self._at = names.index(name, self._at + 1 if name in names[self._at + 1 :] else 0)
        self._percent = max(self._percent, self._overall(0.0))
        self._write("phase", phase=name, step=self._at + 1, steps=len(self._phases))

    def already(self) -> None:
        """Mark the current phase as done by an earlier run, so that the ETA ignores its time."""
        with self._lock:
            before, self._percent = self._percent, self._overall(1.0)
            self._inherited += self._percent - before

    def progress(self, fraction: float, message: str = "") -> None:
        """Report that `fraction` (0 to 1) of the current phase is done. Raises Cancelled as `phase` does."""
        with self._lock:
            self._percent = max(self._percent, self._overall(min(max(fraction, 0.0), 1.0)))
            now = self._clock()
            if now - self._told < _LEAST_SECONDS and fraction < 1.0:
                return
            self._told = now
            eta = self._eta(now)
        name = self._phases[self._at].name if self._at >= 0 else ""
        self._write("progress", phase=name, percent=round(self._percent, 2), eta_seconds=eta, message=message)

    def log(self, message: str, level: str = "info") -> None:
        """Write a log event. Raises Cancelled as `phase` does."""
        self._write("log", level=level, message=message[:MAX_MESSAGE])

    def result(self, **fields: object) -> None:
        self._write("result", **fields)

    def error(self, error: JobError) -> None:
        """Write an error event; a closed stream is ignored."""
        try:
            self._write(
                "error",
                code=error.code.value,
                message=str(error)[:MAX_MESSAGE],
                resumable=error.code in RESUMABLE,
                reasons=list(error.reasons),
            )
        except Cancelled:
            return

    def _overall(self, fraction: float) -> float:
        total = sum(phase.weight for phase in self._phases) or 1.0
        done = sum(phase.weight for phase in self._phases[: max(self._at, 0)])
        return 100.0 * (done + fraction * self._phases[max(self._at, 0)].weight) / total

    def _eta(self, now: float) -> float | None:
        own = self._percent - self._inherited
        if own < _TELLING_PERCENT:
            return None
        return round((now - self._began) * (100.0 - self._percent) / own, 1)

    def _write(self, event: str, **fields: object) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields}, ensure_ascii=True)
        with self._lock:
            try:
                self._out.write(line + "\n")
                self._out.flush()
            except (BrokenPipeError, ValueError) as error:
                raise Cancelled("the reader of the events has closed the pipe") from error


_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "phase": ("phase", "step", "steps"),
    "progress": ("phase", "percent", "eta_seconds", "message"),
    "log": ("level", "message"),
    "result": (),
    "error": ("code", "message", "resumable", "reasons"),
}


def parse_line(line: str | bytes) -> dict[str, Any]:
    """Parse one line of a job's output. Raises ProgressError if it is not an event."""
    if len(line) > MAX_LINE:
        raise ProgressError(f"a line of {len(line)} characters")
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProgressError(f"not JSON: {error}") from error
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise ProgressError("no object with an event")
    if event["event"] not in _FIELDS:
        raise ProgressError(f"{event['event']!r} is not a known event")
    if missing := [name for name in _FIELDS[event["event"]] if name not in event]:
        raise ProgressError(f"{event['event']} lacks {missing[0]}")
    if event["event"] == "error" and event["code"] not in set(Code):
        raise ProgressError(f"{event['code']!r} is not a known code")
    return event

"""`python -m optimizer` as a child of a Celery task, and what it says while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from django.conf import settings

from contracts.recipes.progress import MAX_LINE, parse_line
from controlplane.optimization.database_text import storable
from controlplane.platform.child_environment import inherited
from controlplane.platform.environment import ROOT

GRACE_S: Final = 20.0
"""From SIGTERM to SIGKILL: as long as finishing one layer's files may take."""
_ITS_OWN: Final = ("GRAFTWORK_WORKER_", "GRAFTWORK_TUNED_", "OMP_", "CUDA_", "NVIDIA_", "HF_HUB_OFFLINE")


@dataclass(frozen=True, slots=True)
class Told:
    """What the process has said so far."""

    phase: str = ""
    percent: float = 0.0
    eta_seconds: float | None = None
    last: Mapping[str, Any] | None = None
    """Its result or error, once that was said."""


class Optimizer:
    """One running process. Its words are read in a thread, so that a full pipe never holds it up."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log
        self._told = Told()
        self._reader = threading.Thread(target=self._read, name="optimizer-progress", daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str], fds: Iterable[int] = ()
    ) -> Self:
        """Starts it in a session of its own, with none of our secrets; it keeps `fds` open."""
        command = [
            settings.GRAFTWORK.optimization_python or sys.executable,
            "-m",
            "optimizer",
        ]
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [*command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                env=child_environment() | dict(environment), cwd=ROOT, pass_fds=tuple(fds),
                start_new_session=True,
            )  # fmt: skip
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def told(self) -> Told:
        return self._told

    def ended(self, *, within: float) -> int | None:
        """Its exit status once it has ended and all its words are read; a signal's is negative."""
        try:
            status = self._process.wait(within)
        except subprocess.TimeoutExpired:
            return None
        if status != 0:
            # Workers that it measured, where it could not end them itself.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(5.0)
        return status

    def stop(self, *, grace: float = GRACE_S) -> int:
        """Asks it to end, ends it and all that it started when it does not; its exit status."""
        self._signal(signal.SIGTERM)
        status = self.ended(within=grace)
        if status is None:
            self._signal(signal.SIGKILL)
            status = self.ended(within=60.0)
        return -signal.SIGKILL if status is None else status

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _read(self) -> None:
        stream = self._process.stdout
        if stream is None:
            raise RuntimeError("it was started without a pipe")
        with stream, self._log.open("ab", buffering=0) as log:
            while line := stream.readline(MAX_LINE):
                words = line
                # What is no event is a library's own output: it belongs to the log.
                with suppress(TypeError, ValueError):
                    self._hear(storable(parse_line(line)))
                    words = _for_log(line)
                # A disk without room costs the log, not the rest of what the process says.
                with suppress(OSError):
                    log.write(words)

    def _hear(self, event: Mapping[str, Any]) -> None:
        told = self._told
        match event["event"]:
            case "phase":
                self._told = Told(str(event["phase"])[:60], told.percent, told.eta_seconds, told.last)
            case "progress":
                eta = event["eta_seconds"]
                self._told = Told(
                    str(event["phase"])[:60],
                    float(event["percent"]),
                    None if eta is None else float(eta),
                    told.last,
                )
            case "result" | "error":
                self._told = Told(told.phase, told.percent, None, event)


def child_environment() -> dict[str, str]:
    """What such a process needs of ours: neither the database's address nor any key."""
    return inherited(*_ITS_OWN) | {"PYTHONUNBUFFERED": "1"}


def _for_log(line: bytes) -> bytes:
    """An event as a line that people read; nothing for those that come many times a second."""
    event = parse_line(line)
    stamp = time.strftime("%H:%M:%S", time.gmtime(float(event.get("time") or time.time())))
    match event["event"]:
        case "log":
            text = f"{event['level']}: {event['message']}"
        case "phase":
            text = f"phase {event['step']}/{event['steps']}: {event['phase']}"
        case "error":
            text = f"error {event['code']}: {event['message']}"
        case "result":
            text = "result"
        case _:
            return b""
    return f"{stamp} {text}\n".encode()

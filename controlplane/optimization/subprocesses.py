"""Runs `python -m optimizer` as a child of a Celery task and reads its progress events."""

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
"""Seconds from SIGTERM to SIGKILL: finishing one layer's files may take as long."""
_INHERITED: Final = ("GRAFTWORK_WORKER_", "GRAFTWORK_TUNED_", "OMP_", "CUDA_", "NVIDIA_", "HF_HUB_OFFLINE")


@dataclass(frozen=True, slots=True)
class OptimizerProgress:
    """Progress that the process has reported so far."""

    phase: str = ""
    percent: float = 0.0
    eta_seconds: float | None = None
    last: Mapping[str, Any] | None = None
    """The result or error event, once reported."""


class Optimizer:
    """A running optimizer process. A thread reads its output, so that a full pipe never blocks it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log
        self._progress = OptimizerProgress()
        self._reader = threading.Thread(target=self._read, name="optimizer-progress", daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str], fds: Iterable[int] = ()
    ) -> Self:
        """Start the process in its own session, without this process's secrets; it inherits `fds`."""
        command = [settings.GRAFTWORK.optimization_python or sys.executable, "-m", "optimizer"]
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=child_environment() | dict(environment),
                cwd=ROOT,
                pass_fds=tuple(fds),
                start_new_session=True,
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def progress(self) -> OptimizerProgress:
        return self._progress

    def ended(self, *, within: float) -> int | None:
        """Wait up to `within` seconds; return the exit status (negative for a signal) or None."""
        try:
            status = self._process.wait(within)
        except subprocess.TimeoutExpired:
            return None
        if status != 0:
            # Kill the workers that it measured, which it may have left running.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(5.0)
        return status

    def stop(self, *, grace: float = GRACE_S) -> int:
        """Send SIGTERM, after `grace` seconds SIGKILL, to its whole session; return the exit status."""
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
                text = line
                # A line that is no event comes from a library: write it to the log as it is.
                with suppress(TypeError, ValueError):
                    self._handle_event(storable(parse_line(line)))
                    text = _for_log(line)
                # A full disk loses log lines, but no progress events.
                with suppress(OSError):
                    log.write(text)

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        progress = self._progress
        match event["event"]:
            case "phase":
                self._progress = OptimizerProgress(
                    str(event["phase"])[:60], progress.percent, progress.eta_seconds, progress.last
                )
            case "progress":
                eta = event["eta_seconds"]
                self._progress = OptimizerProgress(
                    str(event["phase"])[:60],
                    float(event["percent"]),
                    None if eta is None else float(eta),
                    progress.last,
                )
            case "result" | "error":
                self._progress = OptimizerProgress(progress.phase, progress.percent, None, event)


def child_environment() -> dict[str, str]:
    """Return the environment for an optimizer process: no database URL and no keys."""
    return inherited(*_INHERITED) | {"PYTHONUNBUFFERED": "1"}


def _for_log(line: bytes) -> bytes:
    """Format an event as a readable log line; empty for frequent events such as progress."""
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

"""One arm: a worker process that runs only while it is measured, and ends with its parent."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from contracts.recipes.progress import Code, JobError
from optimizer.measurement.comparison_order import Arm

START_SECONDS: Final = 900
AT_ONCE: Final = 4
_PDEATHSIG: Final = 1
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes; None if unknown.

    Attributes:
        peak: highest resident size.
        shared_fairly: proportional set size (PSS), in which Linux divides shared pages.
    """

    peak: int | None
    shared_fairly: int | None


class ArmProcess:
    """`python -m worker_engine` on its own port. It runs between `awake` and `asleep`, else it is stopped.

    Attributes:
        started: the worker's report of its start (`/health`).
    """

    def __init__(self, arm: Arm, scratch: Path) -> None:
        """`scratch` is an empty folder, for the log and the adapters' cache."""
        self.arm, self._scratch = arm, scratch
        self.token = secrets.token_hex(16)
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.started: Mapping[str, Any] = {}

    def start(self) -> None:
        """Start the worker, wait until it answers, and stop it (asleep).

        Raises:
            JobError: worker_failed, with the end of its log.
        """
        environment = {
            **{name: value for name, value in os.environ.items() if name != "GRAFTWORK_WORKER_ZYGOTE"},
            **self.arm.environment,
            "GRAFTWORK_FLEET_TOKEN": self.token,
        }
        command = [sys.executable, "-m", "worker_engine", "--model", str(self.arm.model)]
        command += ["--served-model-name", "base", "--port", str(self.port)]
        command += ["--adapter-cache-dir", str(self._scratch / "adapters"), *self.arm.flags]
        with (self._scratch / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise JobError(Code.WORKER_FAILED, f"arm {self.arm.name} did not start: {self.log_tail()}")
            time.sleep(0.2)
        self.asleep()

    def awake(self) -> None:
        """Resume the process. Raises JobError when it has ended."""
        if self._process is None or self._process.poll() is not None:
            raise JobError(Code.WORKER_FAILED, f"arm {self.arm.name} ended: {self.log_tail()}")
        self._signal(signal.SIGCONT)

    def asleep(self) -> None:
        self._signal(signal.SIGSTOP)

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def memory(self) -> Memory:
        assert self._process is not None
        folder = Path("/proc") / str(self._process.pid)
        return Memory(_kib(folder / "status", "VmHWM"), _kib(folder / "smaps_rollup", "Pss"))

    def log_tail(self) -> str:
        with suppress(OSError):
            return (self._scratch / "log").read_text(errors="replace")[-1500:].strip()
        return "it left no log"

    def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the complete answer.

        Raises:
            JobError: worker_failed, with its error.
        """
        try:
            status, content = self._send(path, body, timeout=600)
        except OSError as error:
            raise JobError(
                Code.WORKER_FAILED, f"arm {self.arm.name} does not answer ({error}): {self.log_tail()}"
            ) from error
        if status != 200:
            raise JobError(
                Code.WORKER_FAILED, f"arm {self.arm.name} refuses: {content[:500].decode(errors='replace')}"
            )
        return dict(json.loads(content))

    def _healthy(self) -> bool:
        try:
            status, content = self._send("/health", None, timeout=5)
            self.started = json.loads(content)
        except (OSError, ValueError, http.client.HTTPException):
            return False
        return status == 200

    def _send(self, path: str, body: Mapping[str, Any] | None, *, timeout: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with closing(connection):
            method = "GET" if body is None else "POST"
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def ask_all(ask: Callable[[_Asked], _Answer], items: Sequence[_Asked]) -> list[_Answer]:
    """Answers in the order of `items`.

    Whatever ends it takes the requests back that were not sent; those that were end with their worker, which
    a cancelled comparison stops without waiting for them.
    """
    threads = ThreadPoolExecutor(AT_ONCE)
    try:
        return list(threads.map(ask, items))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def sizes(folder: Path) -> int:
    """Return the bytes of a checkpoint's weights."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _end_with_parent() -> None:
    """Make Linux kill the worker when the job is killed; a stopped worker would otherwise stay forever."""
    if _LIBC is not None:
        _LIBC.prctl(_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _kib(path: Path, name: str) -> int | None:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    return None


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port

"""The child processes of a demo run: start, readiness, failure and shutdown."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from demo import reaper
from demo.errors import ProcessDiedError
from demo.model import ROOT

_LOG_LINES: Final = 15
_POLL_S: Final = 0.1

Check = Callable[[], bool]
"""Readiness check of a process: quick, and False until the process is ready."""


class Processes:
    """Starts processes and ends them all on `close`, or by `demo.reaper` if this process is killed.

    Args:
        environment: variables for each process, in addition to this process's own except GRAFTWORK_*;
            `DemoConfig.environment` has the GRAFTWORK_* variables to pass on.
        logs: folder for one <name>.log each.
        lock: file descriptor that stays open until the last process has ended.
        grace: seconds between SIGTERM and SIGKILL.
        on_stop: called by `close` with a line about each process that ended.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        logs: Path,
        lock: int,
        grace: float = reaper.GRACE_S,
        on_stop: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._mark = uuid.uuid4().hex
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRAFTWORK_")}
        self._environment = {**inherited, **environment, reaper.MARK: self._mark}
        self._logs, self._grace, self._on_stop = logs, grace, on_stop
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._background: set[str] = set()
        logs.mkdir(parents=True, exist_ok=True)
        self._reaper = subprocess.Popen(
            [sys.executable, "-m", "demo.reaper", self._mark],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(lock,),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self, name: str, command: Sequence[str], *, background: bool = False, **environment: str
    ) -> None:
        """Start `command` in the repository, with its own log.

        Args:
            background: it ends by itself, and the others go on if it fails; see `ended`.

        It gets its own session, so that Ctrl-C reaches only the supervisor, which ends processes in order.
        """
        with (self._logs / f"{name}.log").open("wb") as log:
            self._children[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if background:
            self._background.add(name)

    def ended(self) -> list[tuple[str, int]]:
        """Return name and exit status of each background process that has ended, once each."""
        found = []
        for name in sorted(self._background):
            if (status := self._children[name].poll()) is not None:
                self._background.remove(name)
                del self._children[name]
                found.append((name, status))
        return found

    def pid(self, name: str) -> int:
        """Return the process id of a started process."""
        return self._children[name].pid

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def check(self, *, finishing: str = "") -> None:
        """Raise ProcessDiedError with the last log lines if a process has ended by itself.

        Only the process `finishing` may end, with status 0.
        """
        for name, child in self._children.items():
            status = None if name in self._background else child.poll()
            if status is not None and not (name == finishing and status == 0):
                ending = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
                raise ProcessDiedError(f"{name} ended {ending}; {self._last_lines(name)}")

    def wait_ready(
        self, checks: Mapping[str, Check], *, timeout: float, on_ready: Callable[[str], None]
    ) -> None:
        """Wait until every check passes, calling `on_ready` with each name.

        Raises:
            ProcessDiedError: a process ended, or a check did not pass within `timeout` seconds.
        """
        pending, deadline = dict(checks), time.monotonic() + timeout
        while pending:
            self.check()
            for name in [name for name, check in pending.items() if check()]:
                del pending[name]
                on_ready(name)
            if pending and time.monotonic() > deadline:
                name = next(iter(pending))
                raise ProcessDiedError(f"{name} is not ready after {timeout:.0f} s; {self._last_lines(name)}")
            time.sleep(_POLL_S)

    def finish(self, name: str, *, timeout: float) -> None:
        """Wait for a process that ends by itself. Raises ProcessDiedError unless it succeeds in time."""
        child, deadline = self._children[name], time.monotonic() + timeout
        while child.poll() is None:
            self.check(finishing=name)
            if time.monotonic() > deadline:
                raise ProcessDiedError(f"{name} takes over {timeout:.0f} s; {self._last_lines(name)}")
            time.sleep(_POLL_S)
        self.check(finishing=name)
        del self._children[name]

    def close(self) -> None:
        """End all processes, Valkey last, so that the others can still flush their data."""
        others = {name: child for name, child in self._children.items() if name != "valkey"}
        for child in others.values():
            child.terminate()
        deadline = time.monotonic() + self._grace
        for name, child in others.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
                self._on_stop(f"{name:16} stopped")
        # Processes that these started, such as deployments' copies and optimization jobs, and Valkey.
        count = reaper.end(self._mark, grace=self._grace) - ("valkey" in self._children)
        if count > 0:
            self._on_stop(f"{count} processes of deployments and jobs stopped")
        for name, child in self._children.items():
            child.kill()
            child.wait()
            if name not in others or child.returncode == -signal.SIGKILL:
                self._on_stop(f"{name:16} stopped")
        self._children.clear()
        self._reaper.communicate()

    def _last_lines(self, name: str) -> str:
        path = self.log(name)
        lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:] if path.exists() else []
        return "\n".join([f"last lines of {path}:", *(f"    {line}" for line in lines or ["(empty)"])])

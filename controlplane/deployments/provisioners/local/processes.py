"""Processes of this host that outlive their starter, found again by their command lines."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One process and its arguments."""

    pid: int
    arguments: tuple[str, ...]

    def option(self, flag: str) -> str:
        """Return the argument after `flag`; "" if the flag is absent."""
        following = zip(self.arguments, self.arguments[1:], strict=False)
        return next((value for name, value in following if name == flag), "")


def processes() -> list[Process]:
    """Return every process of this host whose arguments are readable."""
    if Path("/proc/self/cmdline").exists():
        return [found for entry in Path("/proc").iterdir() if entry.name.isdigit() if (found := _read(entry))]
    listing = subprocess.run(["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True)
    rows = (line.split() for line in listing.stdout.splitlines())
    return [Process(int(pid), tuple(arguments)) for pid, *arguments in rows]


def start_detached(command: Sequence[str], *, log: Path, environment: Mapping[str, str], cwd: Path) -> int:
    """Start a process that outlives this one; the operating system's init process reaps it.

    Args:
        log: gets its output, and is readable by this user alone, since engines log parts of requests.

    Returns:
        the id of its session, which its children share.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600))
    log.chmod(0o600)  # an earlier release created it readable by all
    script = 'echo $$; "$@" >>"$LOG_FILE" 2>&1 </dev/null &'
    started = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *command],
        env={**environment, "LOG_FILE": str(log)},
        cwd=cwd,
        start_new_session=True,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(started.stdout)


def end(pid: int, *, at_once: bool = False) -> None:
    """Send SIGTERM, or SIGKILL with `at_once`; ignore a process that has ended, or is another user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL if at_once else signal.SIGTERM)


def end_session(session: int | None) -> None:
    """Kill the remaining processes of a session whose leader has ended; only on Linux."""
    if session is None or not Path("/proc/self/stat").exists() or Path(f"/proc/{session}").exists():
        return
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _session(entry) == session:
            end(int(entry.name), at_once=True)


def _session(entry: Path) -> int | None:
    try:
        # The name in parentheses may hold spaces; state, parent, group and session follow it.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return None


def _read(entry: Path) -> Process | None:
    try:
        data = (entry / "cmdline").read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return None
    arguments = tuple(part.decode(errors="surrogateescape") for part in data.split(b"\0")[:-1])
    # A zombie process has no arguments.
    return Process(int(entry.name), arguments) if arguments else None

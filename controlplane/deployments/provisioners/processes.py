"""Processes of this host that nobody's death takes along, found again by what their command line says."""

from __future__ import annotations

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
        """What follows `flag`; "" where it does not stand."""
        following = zip(self.arguments, self.arguments[1:], strict=False)
        return next((value for name, value in following if name == flag), "")


def processes() -> list[Process]:
    """Every process of this host whose arguments may be read."""
    if Path("/proc/self/cmdline").exists():
        return [found for entry in Path("/proc").iterdir() if entry.name.isdigit() if (found := _read(entry))]
    listing = subprocess.run(["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True)
    rows = (line.split() for line in listing.stdout.splitlines())
    return [Process(int(pid), tuple(arguments)) for pid, *arguments in rows]


def start_detached(command: Sequence[str], *, log: Path, environment: Mapping[str, str], cwd: Path) -> None:
    """Starts a process whose parent is the system: it outlives us, and is reaped by whoever reaps orphans."""
    log.parent.mkdir(parents=True, exist_ok=True)
    script = '"$@" >>"$LOG_FILE" 2>&1 </dev/null &'
    subprocess.run(
        ["/bin/sh", "-c", script, "sh", *command],
        env={**environment, "LOG_FILE": str(log)},
        cwd=cwd, start_new_session=True, check=True,
    )  # fmt: skip


def end(pid: int, *, at_once: bool = False) -> None:
    """Asks a process to end, or ends it at once, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL if at_once else signal.SIGTERM)
    except ProcessLookupError:
        return


def _read(entry: Path) -> Process | None:
    try:
        data = (entry / "cmdline").read_bytes()
    except OSError:  # it has ended, or is another's
        return None
    arguments = tuple(part.decode(errors="surrogateescape") for part in data.split(b"\0")[:-1])
    # One that has ended and waits to be reaped has none.
    return Process(int(entry.name), arguments) if arguments else None

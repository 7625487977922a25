"""Ends every process of one demo run, even those whose parents have died.

Each process of the supervisor has the run's mark in its environment and passes it on to its own children:
Celery's pool, the web server's processes, and processes of Celery's tasks, such as a deployment's copies
and optimization jobs (`platform.child_environment`). So none escapes by a new process group or by losing
its parent. `python -m demo.reaper <mark>` waits for EOF on standard input, which comes however the
supervisor ends, SIGKILL included. Then it ends the remaining processes.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Final

import psutil  # type: ignore[import-untyped]

from controlplane.platform.child_environment import DEMO_RUN

MARK: Final = DEMO_RUN
"""Environment variable that names the run."""
GRACE_S: Final = 10.0
"""Seconds between SIGTERM and SIGKILL."""


def processes_of(mark: str) -> list[psutil.Process]:
    """Return every running process of this user with `mark`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or another user's
    return found


def end(mark: str, *, grace: float = GRACE_S) -> int:
    """End the run's processes: SIGTERM, then SIGKILL after `grace` seconds, until none is left.

    Returns how many received SIGTERM.
    """
    processes = processes_of(mark)
    for process in processes:
        _signal(process, signal.SIGTERM)
    psutil.wait_procs(processes, timeout=grace)
    while alive := processes_of(mark):
        for process in alive:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(alive, timeout=1)
    return len(processes)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def main() -> int:
    """Entry of `python -m demo.reaper <mark>`; returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())

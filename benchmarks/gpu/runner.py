"""Runs a part's tasks one after another in a separate process, within a time budget."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.gpu.report import Report
from benchmarks.gpu.task import Ceilings, Row, Task
from benchmarks.gpu.worker import CEILINGS

ROOT: Final = Path(__file__).resolve().parent.parent.parent
CEILINGS_LIMIT_S: Final = 120.0
HUNG: Final = "no answer"


@dataclass
class Budget:
    """Seconds for a whole part, counted from `start`; a row begins only if the longest so far would fit."""

    seconds: float
    start: float = field(default_factory=time.monotonic)
    longest: float = 2.0

    @property
    def remaining(self) -> float:
        return self.seconds - (time.monotonic() - self.start)

    @property
    def allows_another(self) -> bool:
        return self.remaining > 1.2 * self.longest

    def spent(self, seconds: float) -> None:
        self.longest = max(self.longest, seconds)


class Worker:
    """A process that runs tasks; started on demand, and restarted after it was lost."""

    def __init__(self, part: str, device: str, quick: bool, out: Path) -> None:
        self._arguments = [part, device, "quick" if quick else "full", str(out.resolve())]
        self._environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(
        self, key: str, ceilings: Ceilings | None, *, environment: Mapping[str, str], limit_s: float
    ) -> Row:
        """Return the task's row, or one that says how the process was lost."""
        if self._environment != dict(environment):
            self.stop()
            self._environment = dict(environment)
        connection = self._connection or self._start()
        connection.send((key, ceilings))
        if not connection.poll(limit_s):
            self.stop()
            return {"key": key, "passed": False, "error": f"{HUNG} within {limit_s:.0f} s: hung, killed"}
        try:
            row: Row = connection.recv()
        except EOFError:
            code = self._process.wait() if self._process else None
            self.stop()
            return {"key": key, "passed": False, "error": f"the process ended with code {code}"}
        if row.pop("broken", False):
            self.stop()
        return row

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None

    def _start(self) -> Connection:
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "benchmarks.gpu.worker", str(theirs.fileno()), *self._arguments]
        # As the worker does: spinning idle threads would slow down the measured code.
        environment = {"OMP_WAIT_POLICY": "passive"} | os.environ | self._environment
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        self._connection = ours
        return ours


def run_part(tasks: Sequence[Task], report: Report, worker: Worker, budget: Budget) -> None:
    """Add a row for each task that the report lacks, within the budget; `report.left` lists the rest.

    Raises:
        RuntimeError: not even the ceilings could be measured.
    """
    todo = [task for task in tasks if task.key not in report.keys]
    report.left = [task.key for task in todo]
    if not todo:
        report.write()
        return
    measured = worker.run(CEILINGS, None, environment=todo[0].environment, limit_s=CEILINGS_LIMIT_S)
    if "error" in measured:
        raise RuntimeError(f"cannot measure the device: {measured['error']}")
    ceilings = report.begin(measured)
    for task in todo:
        if not budget.allows_another:
            break
        begun = time.monotonic()
        limit_s = min(task.limit_s, max(budget.remaining, 1.0))
        row = worker.run(task.key, ceilings, environment=task.environment, limit_s=limit_s)
        budget.spent(time.monotonic() - begun)
        if HUNG in row.get("error", "") and limit_s < task.limit_s:
            break  # cut off by the budget, which says nothing about the task
        if not row.get("unfinished"):
            report.left.remove(task.key)
        report.add({"inputs": dict(task.inputs), "measured_on": report.measured_on} | row)
    report.runs[-1]["seconds"] = round(budget.seconds - budget.remaining, 1)
    report.write()

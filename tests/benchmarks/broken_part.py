"""A part whose tasks raise, hang, kill their process and succeed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from benchmarks.gpu.task import Bench, Goal, Row, Task


def _raises(bench: Bench) -> Row:
    raise ValueError("no such shape")


def _hangs(bench: Bench) -> Row:
    time.sleep(60)  # Longer than its limit of one second.
    return {"passed": True}


def _dies(bench: Bench) -> Row:
    os._exit(7)


def _reports(bench: Bench) -> Row:
    return {"passed": True, "variable": os.environ.get("SOME_VARIABLE"), "pid": os.getpid()}


def tasks(quick: bool, device: str) -> list[Task]:
    return [
        Task("raises", {"op": "none"}, _raises),
        Task("hangs", {"op": "none"}, _hangs, limit_s=1.0),
        Task("dies", {"op": "none"}, _dies),
        Task("first", {"op": "none"}, _reports),
        Task("second", {"op": "none"}, _reports),
        Task("other", {"op": "none"}, _reports, environment={"SOME_VARIABLE": "set"}),
    ]


def goals(rows: Sequence[Row]) -> list[Goal]:
    return []

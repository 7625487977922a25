"""The process that runs tasks: `python -m benchmarks.gpu.worker FD PART DEVICE QUICK OUT`.

It takes (key, ceilings) from the connection and answers with a row. A broken device or a hung kernel ends
this process, not the report.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
import zlib
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import torch

from benchmarks.gpu import ceilings
from benchmarks.gpu.task import Bench, Row, Task

CEILINGS = "ceilings"
"""The task that every run starts with."""


def load_part(name: str) -> ModuleType:
    """The module that has the part's `tasks` and `goals`: one of `parts`, or any by its whole name."""
    return importlib.import_module(name if "." in name else f"benchmarks.gpu.parts.{name}")


def serve(connection: Connection, part: str, device: torch.device, quick: bool, out: Path) -> None:
    """Answers until the other side closes."""
    tasks: dict[str, Task] = {task.key: task for task in load_part(part).tasks(quick, device.type)}
    tasks[CEILINGS] = Task(CEILINGS, {}, ceilings.measure)
    while True:
        try:
            key, known = connection.recv()
        except EOFError:
            return
        connection.send(run(tasks[key], Bench(device, quick, known or ceilings.UNKNOWN, out)))


def run(task: Task, bench: Bench) -> Row:
    """The task's row; an exception is the row's error, and `broken` says that the device is lost."""
    start = time.perf_counter()
    broken = False
    try:
        # A row is the same numbers in every session: what fails can be run again, alone.
        torch.manual_seed(zlib.crc32(task.key.encode()))
        result = task.run(bench)
        if bench.device.type == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        lines = traceback.format_exc().strip().splitlines()
        result = {"passed": False, "error": f"{type(error).__name__}: {error}", "trace": lines[-12:]}
        broken = bench.device.type == "cuda" and not _alive()
    row = {"key": task.key, "inputs": dict(task.inputs), "measured_on": bench.device.type, **result}
    row["seconds"] = round(time.perf_counter() - start, 3)
    return row | ({"broken": True} if broken else {})


def _alive() -> bool:
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def main() -> None:
    descriptor, part, device, quick, out = sys.argv[1:]
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)
    serve(Connection(int(descriptor)), part, place, quick == "quick", Path(out))


if __name__ == "__main__":
    main()

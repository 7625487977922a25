"""Part `tune`: block sizes by `kernels.tune`, one row a shape, into files that kernels/configs/ can take."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Final

from benchmarks.gpu.task import Bench, Goal, Row, Task
from kernels import tuned
from kernels.tune import OPS, clock_for, tune
from kernels.tuning import Clock, Tuning

FOLDER: Final = "configs"
"""In the report's folder: `{gpu}_{op}.json`, to be copied to kernels/configs/ as they are."""
SHAPE_S: Final = 40.0
"""Seconds of a shape in one run; a search that they cut off is gone on with by `--resume`."""


def tasks(quick: bool, device: str) -> list[Task]:
    """Every op's shapes in turn, the most wanted first."""
    made: list[Task] = []
    queues = [(op, list(_tuning(op).shapes(quick=quick))) for op in OPS]
    while any(shapes for _, shapes in queues):
        for op, shapes in queues:
            if shapes:
                made.append(_task(op, shapes.pop(0), device))
    return made


def _task(op: str, shape: tuned.Shape, device: str) -> Task:
    key = ".".join(["tune", op, *(f"{name}={value}" for name, value in shape.items())])
    # On a CPU the search is gone through in the interpreter; its times say nothing.
    environment = {} if device == "cuda" else {"TRITON_INTERPRET": "1"}
    inputs = {"op": op, **shape}
    return Task(key, inputs, partial(run, op=op, shape=shape), environment, limit_s=SHAPE_S + 30)


def _tuning(op: str) -> Tuning:
    found: Tuning = importlib.import_module(f"kernels.{op}.tuning").TUNING
    return found


def run(bench: Bench, op: str, shape: tuned.Shape) -> Row:
    """The fastest configuration at one shape, so far; the op's file in the report's folder has it as well."""
    path = tune(_tuning(op), _clock(bench), bench.out / FOLDER, lambda other: other == shape)
    entries = tuned.document(path)["entries"] if path.exists() else []
    found = [entry for entry in entries if entry["shape"] == dict(shape)]
    if not found:
        return {"passed": False, "error": "nothing that was tried runs"}
    entry = {name: value for name, value in found[0].items() if name != tuned.TRIALS}
    default = entry["default_microseconds"]
    gain = round(default / entry["microseconds"], 3) if default else None
    row = {"entry": entry, "gain": gain, "tried": entry["tried"]}
    if tuned.TRIALS in found[0]:
        row |= {"unfinished": True, "reason": f"{SHAPE_S:.0f} s are over; --resume tries the others"}
    return row


def _clock(bench: Bench) -> Clock:
    return clock_for(bench.device, quick=bench.quick, budget=SHAPE_S)


def summary(rows: Sequence[Row]) -> list[str]:
    """How many shapes and trials, and what tuning gained over the built-in sizes where a GPU measured it."""
    gains = [row["gain"] for row in rows if row.get("gain") and row.get("measured_on") == "cuda"]
    held = [row for row in rows if "entry" in row]
    unfinished = sum(bool(row.get("unfinished")) for row in held)
    tried = sum(row["tried"] for row in held)
    lines = [
        f"{len(held)} shapes in {FOLDER}/, {unfinished} of them unfinished; {tried} configurations tried"
    ]
    if gains:
        mean = statistics.geometric_mean(gains)
        lines.append(f"faster than built-in sizes: {mean:.2f}x in geometric mean, at most {max(gains):.2f}x")
    return lines


def goals(rows: Sequence[Row]) -> list[Goal]:
    """None: what tuning is for shows in part `kernels`."""
    return []

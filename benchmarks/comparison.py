"""Comparisons of the demo model with itself: how often one shows a difference, and how large one it finds.

Two arms are the same worker, a third has weights of 32 bits. From one long run of real rounds a hundred
comparisons are drawn, each of as many rounds as an order takes by default: rounds are exchangeable, for each
draws its arms' order anew. What they share is the machine and the hour, so they are no hundred separate days.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.figure import Figure
from benchmarks.processes import DEMO_MODEL
from contracts.recipes.spec_fields import SpecFields
from optimizer.measurement.arm_process import ArmProcess
from optimizer.measurement.comparison_order import Arm, Level, Load
from optimizer.measurement.rounds import JUDGED, Rounds, measure
from optimizer.measurement.statistics import FAMILY_LEVEL, judged, least_rounds
from optimizer.measurement.workload import Workload

REPETITIONS: Final = 100
GOAL: Final = 0.95
ROUNDS: Final = 40
CONCURRENCY: Final = (1, 2)
LEVELS: Final = tuple(Level(streams=streams) for streams in CONCURRENCY)


def run() -> Iterator[Figure]:
    """Share of A/A comparisons that show no difference (goal 0.95), and of float32's that do."""
    load = Load.read(SpecFields("load", {"concurrency": list(CONCURRENCY), "max_tokens": 16}))
    measured = _measured(load)
    rounds = least_rounds(len(JUDGED) * len(CONCURRENCY)) + 2
    same = _share_shown(measured, "same", rounds)
    note = f"{REPETITIONS} comparisons of {rounds} rounds drawn from {ROUNDS}; {_middle(measured, 'same')}"
    share, metric = round(1 - same, 3), "a_a_no_difference_shown"
    yield Figure("comparison", metric, share, "share", goal=GOAL, met=1 - same >= GOAL, note=note)
    found = _share_shown(measured, "float32", rounds)
    note = f"float32 beside bfloat16; {_middle(measured, 'float32')}"
    yield Figure("comparison", "difference_shown", round(found, 3), "share", note=note)


def _measured(load: Load) -> Rounds:
    plain: Mapping[str, Any] = {"model": DEMO_MODEL, "environment": {}, "price": None}
    arms = [
        Arm("original", flags=(), **plain),
        Arm("same", flags=(), **plain),
        Arm("float32", flags=("--dtype", "float32"), **plain),
    ]
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graftwork-bench-")))
        processes = []
        for arm in arms:
            (scratch := root / arm.name).mkdir()
            process = ArmProcess(arm, scratch)
            stack.callback(process.stop)
            process.start()
            processes.append(process)
        workload = Workload(load, DEMO_MODEL, [], seed=0)
        return measure(processes, workload, levels=LEVELS, rounds=ROUNDS, warm_up=2, seed=0, told=_untold)


def _untold(fraction: float, message: str) -> None:
    """Figures come at the end."""


def _share_shown(measured: Rounds, arm: str, rounds: int) -> float:
    """Of `REPETITIONS` comparisons of so many rounds, those that show any difference."""
    ratios = measured.log_ratios(arm, LEVELS)
    draw = np.random.default_rng(0)
    shown = 0
    for _ in range(REPETITIONS):
        chosen = draw.choice(ROUNDS, size=rounds, replace=False)
        part = {name: [values[at] for at in chosen] for name, values in ratios.items()}
        shown += any(verdict.shown for verdict in judged(part, level=FAMILY_LEVEL).values())
    return shown / REPETITIONS


def _middle(measured: Rounds, arm: str) -> str:
    verdicts = judged(measured.log_ratios(arm, LEVELS))
    told: Sequence[str] = [
        f"{name} {verdict.ratio:.3f} ({verdict.low:.3f} to {verdict.high:.3f})"
        for name, verdict in verdicts.items()
    ]
    return f"all {ROUNDS} rounds: {json.dumps(told)[1:-1]}"

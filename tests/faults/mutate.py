"""Run a seeded sample of mutants, each against the tests of its module, and report which survive."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.faults.covering import Baseline, baseline
from tests.faults.mutants import Mutant, mutants_of
from tests.faults.tree import Tree

GATE: Final = ("-m", "not slow")
BASELINE_S: Final = 1800.0
LEAST_LIMIT_S: Final = 60.0
"""A mutant whose tests take this and three times as long as without it hangs, and counts as noticed."""
MOST_IDS: Final = 100
"""Tests that are named one by one at most; a command line has its limit."""


def _files(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}.py" for name in names)


TESTS: Final[dict[str, tuple[str, ...]]] = {
    "gateway/admission/*.py": ("tests/gateway/admission",),
    "gateway/wal*.py": _files("tests/gateway", "test_wal", "test_wal_alone", "test_wal_faults"),
    "gateway/metering.py": _files("tests/gateway", "test_metering", "test_app"),
    "controlplane/metering/*.py": ("tests/controlplane/metering",),
    "controlplane/billing/*.py": ("tests/controlplane/billing",),
    "controlplane/billing/ledger/*.py": ("tests/controlplane/billing",),
    "controlplane/billing/invoices/*.py": ("tests/controlplane/billing",),
    "worker_engine/scheduler.py": _files("tests/worker_engine", "test_scheduler", "test_engine"),
    "worker_engine/memory_pool.py": _files("tests/worker_engine", "test_memory_pool", "test_scheduler"),
    "worker_engine/adapters/*.py": ("tests/worker_engine/adapters",),
    "kernels/native/*.py": ("tests/kernels/test_native.py",),
    "kernels/lora/reference.py": _files("tests/kernels", "test_lora", "test_lora_against_peft"),
}  # fmt: skip
"""Modules that are mutated, and the tests that must notice: those beside them in the mirror of the tree."""


def sample(root: Path, *, seed: int, count: int, only: str = "") -> list[tuple[Mutant, tuple[str, ...]]]:
    """`count` mutants with their tests; each module has its share, whatever its length."""
    chance = random.Random(seed)
    by_pattern = []
    for pattern, tests in TESTS.items():
        files = sorted(str(path.relative_to(root)) for path in root.glob(pattern))
        if not files:
            raise FileNotFoundError(f"no module is named {pattern}: mend TESTS in {__file__}")
        found = [
            (mutant, tests)
            for file in files
            if only in file
            for mutant in mutants_of(file, (root / file).read_text())
        ]
        by_pattern.append(chance.sample(found, min(count, len(found))))
    shares = [
        each for row in zip(*(_padded(rows, count) for rows in by_pattern), strict=True) for each in row
    ]
    return [each for each in shares if each is not None][:count]


def _padded(rows: list[Any], count: int) -> list[Any]:
    return rows + [None] * (count - len(rows))


def mutate(tree: Tree, *, seed: int, count: int, only: str, output: Path) -> None:
    """Write `output` after each mutant: an interrupted run keeps what it found."""
    results: list[dict[str, Any]] = []
    baselines: dict[tuple[str, ...], Baseline | None] = {}
    output.parent.mkdir(parents=True, exist_ok=True)
    for mutant, tests in sample(tree.root, seed=seed, count=count, only=only):
        if tests not in baselines:
            baselines[tests] = baseline(tree, [*GATE, *tests], seconds=BASELINE_S)
        before = baselines[tests]
        results.append(
            _row(mutant, "unusable", "", 0.0) if before is None else _result(tree, mutant, tests, before)
        )
        counts = Counter(row["verdict"] for row in results)
        output.write_text(json.dumps({"seed": seed, "counts": counts, "mutants": results}, indent=1) + "\n")
        print(f"{results[-1]['verdict']:9} {mutant.file}:{mutant.line} {mutant.kind}", flush=True)
    print(json.dumps(Counter(row["verdict"] for row in results)))


def _result(tree: Tree, mutant: Mutant, tests: tuple[str, ...], before: Baseline) -> dict[str, Any]:
    """Run the tests that ran the line; a mutant that passes them is held against all of its module."""
    text, began = (tree.root / mutant.file).read_text(), time.monotonic()
    covering = before.of(mutant.file, mutant.line)
    with tree.changed(mutant.file, mutant.applied(text)):
        for chosen in filter(None, (covering[:MOST_IDS], tests)):
            outcome = tree.test([*GATE, *chosen], seconds=LEAST_LIMIT_S + 3 * before.seconds)
            if outcome.verdict != "passed":
                # Where pytest runs no test it ends by another status: the module cannot be imported.
                verdict = "timeout" if outcome.verdict == "timeout" else "killed"
                return _row(mutant, verdict, outcome.killed_by, time.monotonic() - began)
    return _row(mutant, "survived", "", time.monotonic() - began)


def _row(mutant: Mutant, verdict: str, killed_by: str, seconds: float) -> dict[str, Any]:
    return {**asdict(mutant), "verdict": verdict, "killed_by": killed_by, "seconds": round(seconds, 1)}

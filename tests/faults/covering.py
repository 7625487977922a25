"""Which tests ran a line: one run of the tests under coverage, with a context for each test."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coverage import CoverageData

from tests.faults.tree import Tree

PLANES = ("gateway", "controlplane", "worker_engine", "kernels")


@dataclass(frozen=True, slots=True)
class Baseline:
    """A run without a fault: how long it took, and tests by file and line; None where it did not pass."""

    seconds: float
    tests: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    def of(self, file: str, line: int) -> list[str]:
        """Ids of the tests that ran the line: none if only other processes or shared fixtures did."""
        return self.tests.get(file, {}).get(line, [])


def baseline(tree: Tree, tests: Sequence[str], *, seconds: float) -> Baseline | None:
    """Run the tests once under coverage; None if they do not pass."""
    began, data_file = time.monotonic(), tree.root / ".coverage"
    data_file.unlink(missing_ok=True)
    measured = [f"--cov={plane}" for plane in PLANES]
    quiet = ["--cov-report=", "--cov-context=test", "-W", "ignore::coverage.exceptions.CoverageWarning"]
    if tree.test([*measured, *quiet, *tests], seconds=seconds).verdict != "passed":
        return None
    found = Baseline(time.monotonic() - began)
    data = CoverageData(str(data_file))
    data.read()
    for name in data.measured_files():
        path = Path(name).resolve()
        if path.is_relative_to(tree.root.resolve()):
            found.tests[str(path.relative_to(tree.root.resolve()))] = {
                line: sorted({context.partition("|")[0] for context in contexts} - {""})
                for line, contexts in data.contexts_by_lineno(name).items()
            }
    return found

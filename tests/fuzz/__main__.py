"""`python -m tests.fuzz TARGET --minutes 10 --seed 1`: run random cases and report what fails.

A finding is any exception of a case, a hang, or memory that grows. `--case N` repeats one case of a seed.
Exit status 1 when there is a finding.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzz.target import CASE_SECONDS, CaseHangs, Opener, Target, draw_of, resident, time_limit

TARGETS: Final = ("grammars", "schemas", "usage", "archives", "http")
MAX_GROWTH: Final = 64 << 20
"""Bytes that the target's processes may grow by after the warm-up."""
_WARM_UP: Final = 300
"""Cases before memory is first measured: caches fill and allocators reach their working size."""
_MEASURED_EVERY: Final = 50
_MOST_FINDINGS: Final = 20


@dataclass(slots=True)
class Report:
    """Counts and findings of a run so far."""

    seed: int
    cases: int = 0
    findings: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)
    base: int = 0
    growth: int = 0
    _places: set[str] = field(default_factory=set)

    def add_finding(self, case: int, error: BaseException) -> None:
        """Count a finding, and print it unless one of the same place was printed before."""
        self.findings += 1
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} {frame.filename}:{frame.lineno}"
        if place not in self._places:
            self._places.add(place)
            print(f"FINDING: --seed {self.seed} --case {case}", flush=True)
            traceback.print_exception(error, file=sys.stdout)

    def measure(self, target: Target) -> None:
        held = resident(target.pids())
        if self.cases <= _WARM_UP:
            self.base = held
        self.growth = max(self.growth, held - self.base)

    def print(self, name: str, seconds: float) -> None:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
        print(
            f"{name}: {self.cases} cases in {seconds / 60:.1f} minutes ({outcomes}); memory grew by"
            f" {self.growth / (1 << 20):.1f} MiB from {self.base / (1 << 20):.0f} MiB; the slowest case"
            f" ({self.slowest[1]}) took {self.slowest[0]:.2f} s; {self.findings} findings",
            flush=True,
        )


def fuzz(target: Target, report: Report, *, seconds: float) -> None:
    """Run cases for so many seconds, or until too many of them fail."""
    told = time.monotonic()
    end = told + seconds
    while time.monotonic() < end and report.findings < _MOST_FINDINGS:
        case, began = report.cases, time.monotonic()
        try:
            with time_limit(CASE_SECONDS):
                report.outcomes[target.run(draw_of(report.seed, case))] += 1
        except (Exception, CaseHangs) as error:
            report.add_finding(case, error)
        report.cases += 1
        report.slowest = max(report.slowest, (time.monotonic() - began, case))
        if report.cases % _MEASURED_EVERY == 0:
            report.measure(target)
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"{report.cases} cases, memory grew by {report.growth / (1 << 20):.1f} MiB", flush=True)


def _watch(report: Report) -> None:
    """End the process when a case stays in native code, which no signal interrupts."""
    case, since = -1, 0.0
    while True:
        time.sleep(1)  # a hang is the absence of any event, so this polls
        if case != report.cases:
            case, since = report.cases, time.monotonic()
        elif time.monotonic() - since > 2 * CASE_SECONDS:
            print(f"FINDING: --seed {report.seed} --case {case} does not end", flush=True)
            os._exit(1)


def _run(name: str, asked: argparse.Namespace) -> bool:
    """Fuzz one target; return True when there is no finding."""
    opener: Opener = importlib.import_module(f"tests.fuzz.{name}").open_target
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, opener(Path(folder)) as target:
        if asked.case is not None:
            print(target.run(draw_of(asked.seed, asked.case)))
            return True
        report, began = Report(asked.seed), time.monotonic()
        threading.Thread(target=_watch, args=(report,), daemon=True).start()
        fuzz(target, report, seconds=asked.minutes * 60)
        report.print(name, time.monotonic() - began)
    if report.growth > MAX_GROWTH:
        print(f"FINDING: memory grew by more than {MAX_GROWTH >> 20} MiB", flush=True)
    return not report.findings and report.growth <= MAX_GROWTH


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)"
    )
    parser.add_argument("--minutes", type=float, default=10, help="duration for each target (default: 10)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run this case of the seed alone, of one target")
    asked = parser.parse_args()
    if unknown := set(asked.targets) - set(TARGETS):
        parser.error(f"unknown target {min(unknown)}")
    # The product logs what it refuses, thousands of times.
    logging.disable(logging.ERROR)
    # Each target runs, also behind one with findings.
    return 1 if [name for name in asked.targets or TARGETS if not _run(name, asked)] else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.faults`: inject each fault of `injected.py` into a copy, where its tests must fail.

Exit status 1 when a test passes in spite of its fault, or fails without any.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from tests.faults.injected import FAULTS, Fault
from tests.faults.tree import ROOT, TestRun, TreeCopy, tree_copy

SECONDS_PER_RUN: Final = 300.0


class InvalidFault(ValueError):
    """A fault whose old text is not in its file exactly once."""


def faulty_text(fault: Fault, text: str) -> str:
    """Return the file's text with the fault. Raises InvalidFault."""
    if (count := text.count(fault.old)) != 1:
        raise InvalidFault(f"{fault.name}: {fault.file} has its old text {count} times, expected once")
    return text.replace(fault.old, fault.new)


def verdict(fault: Fault, run: TestRun) -> str:
    """Return "found" when every test of the fault failed, else what happened instead."""
    missed = [test for test in fault.tests if not any(_is_case(failed, test) for failed in run.failed)]
    if run.code == 1 and not missed:
        return "found"
    if run.code in (0, 1):
        return f"NOT FOUND by {', '.join(missed)}"
    return f"pytest exited with {run.code}:\n{run.output}"


def _is_case(failed: str, test: str) -> bool:
    return failed == test or failed.startswith(f"{test}[")


def _inject(copy: TreeCopy, fault: Fault) -> str:
    text = (copy.folder / fault.file).read_text(encoding="utf-8")
    with copy.changed(fault.file, faulty_text(fault, text)):
        return verdict(fault, copy.test(fault.tests, limit=SECONDS_PER_RUN))


def main() -> int:
    surprises = 0
    with tree_copy(ROOT) as copy:
        tests = sorted({test for fault in FAULTS for test in fault.tests})
        run = copy.test(tests, limit=SECONDS_PER_RUN)
        surprises += not run.passed
        result = "pass" if run.passed else f"FAIL:\n{run.output}"
        print(f"{'no fault':36} {run.seconds:6.1f} s  {len(tests)} tests {result}", flush=True)
        for fault in FAULTS:
            began = time.monotonic()
            result = _inject(copy, fault)
            surprises += result != "found"
            print(f"{fault.name:36} {time.monotonic() - began:6.1f} s  {result}", flush=True)
    print(f"{len(FAULTS)} faults, {surprises} surprises")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())

"""The logic of every kernel, block by block on the CPU, in a process that has Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "interpreted"
ROOT = HERE.parent.parent.parent


def run_files(marked: str) -> set[str]:
    """Run the tests with this marker expression; return the files with passed tests.

    All run in one process: each would take seconds of processor time to load PyTorch and pytest.
    """
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    files = sorted(HERE.glob("test_*.py"))
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", marked, *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return {line.partition("::")[0] for line in done.stdout.splitlines() if " PASSED" in line}


@pytest.mark.timeout(900)
def test_kernels_in_the_interpreter() -> None:
    """Every pair of values of two parameters."""
    assert run_files("not slow") == {str(file.relative_to(ROOT)) for file in HERE.glob("test_*.py")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_rest_of_each_grid_in_the_interpreter() -> None:
    assert run_files("slow")

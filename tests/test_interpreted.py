"""The logic of every Triton kernel on the CPU, in a process that has Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

FOLDERS = [ROOT / "tests" / plane / "interpreted" for plane in ("kernels", "worker_engine")]
pytestmark = [pytest.mark.costly("Triton's interpreter"), pytest.mark.timeout(900)]


def run_files(marked: str) -> set[str]:
    """Run the tests with this marker expression; return the files with passed tests.

    All run in one process: each would take seconds of processor time to load PyTorch and pytest.
    """
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    folders = map(str, FOLDERS)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", marked, *folders]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return {line.partition("::")[0] for line in done.stdout.splitlines() if " PASSED" in line}


def test_kernels_in_the_interpreter() -> None:
    """Every pair of values of two parameters."""
    files = {str(file.relative_to(ROOT)) for folder in FOLDERS for file in folder.glob("test_*.py")}
    assert run_files("not slow") == files


@pytest.mark.slow
def test_the_rest_of_each_grid_in_the_interpreter() -> None:
    assert run_files("slow")

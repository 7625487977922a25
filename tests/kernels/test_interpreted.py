"""The logic of every kernel, block by block on the CPU, in a process that has Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "interpreted"
ROOT = HERE.parent.parent.parent


@pytest.mark.parametrize("file", sorted(HERE.glob("test_*.py")), ids=lambda file: file.stem)
def test_kernels_in_the_interpreter(file: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

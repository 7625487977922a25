"""The budget of tests, on a small suite of its own: see tests/budget.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SUITE = """
import subprocess, sys, time
import pytest

# Five times the budget: a slow processor is allowed more.
SPIN = "import time\\nwhile time.process_time() < 1: pass"

def spin():
    end = time.process_time() + 0.25
    while time.process_time() < end:
        pass

@pytest.fixture(scope="module")
def shared():
    spin()
    yield
    spin()

@pytest.fixture(scope="session")
def late():
    spin()

def test_shared_fixtures_are_charged_to_nobody(shared, request):
    request.getfixturevalue("late")

def test_a_child_uses_too_much():
    subprocess.run([sys.executable, "-c", SPIN])

def test_two_processes():
    for _ in range(2):
        subprocess.run(["true"])

@pytest.mark.parametrize(
    "_", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.costly("it may"))]
)
def test_marked_tests_may(_):
    for _ in range(2):
        subprocess.run(["true"])
"""


@pytest.mark.costly("runs a suite of its own")
def test_the_run_fails_and_names_the_tests_over_their_budget(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n slow\n costly\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.budget",
        "-p",
        "no:django",
        "--rootdir",
        str(tmp_path),
    ]
    (tmp_path / "conftest.py").write_text("import tests.budget\n\ntests.budget.MAX_CPU_SECONDS = 0.2\n")
    report = tmp_path / "report.jsonl"
    result = subprocess.run(
        [*command, f"--budget-report={report}", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 1, result.stdout + result.stderr
    section = result.stdout.split("over the budget of 0.2 CPU seconds and 1 process")[1]
    listed = {line.rpartition("::")[2] for line in section.splitlines() if "CPU s " in line}
    assert listed == {"test_a_child_uses_too_much", "test_two_processes"}
    assert "5 passed" in section
    assert len(report.read_text().splitlines()) == 5

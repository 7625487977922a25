"""Every kernel compiles without a GPU as it was meant to; here for one architecture each, all taking turns.

All of them for all take minutes: `python -m kernels.ahead_of_time` does that when a kernel has changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.ahead_of_time import CAPABILITIES, each, variants

ROOT = Path(__file__).parent.parent.parent
NARROW = ("combine", "look_up")
"""They load a few floats a thread, or single elements of scattered columns: no rows of weights or keys."""


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, Any]]:
    """Rows that `python -m kernels.ahead_of_time --in-turn` prints, run without Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.ahead_of_time", "--in-turn"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(900)
def test_every_variant_and_every_architecture_of_every_op(compiled: list[dict[str, Any]]) -> None:
    found = [(one["name"], one["capability"]) for one in compiled]
    assert found == each("", CAPABILITIES, in_turn=True)
    assert [name for name, _ in found] == [variant.name for variant in variants()]
    ops = {name.split(".")[0] for name, _ in found}
    for op in ops:
        assert {capability for name, capability in found if name.startswith(op)} == set(CAPABILITIES), op


def test_nothing_spills(compiled: list[dict[str, Any]]) -> None:
    assert [one for one in compiled if one["spilled"]] == []


def test_dependent_launch_is_compiled_for_sm_90_and_later_only(compiled: list[dict[str, Any]]) -> None:
    with_pdl = {variant.name for variant in variants() if variant.pdl_from is not None}
    for one in compiled:
        assert one["dependent_launch"] == (one["name"] in with_pdl and one["capability"] >= 90)


def test_aligned_weights_are_loaded_sixteen_bytes_at_a_time(compiled: list[dict[str, Any]]) -> None:
    for one in compiled:
        if not any(kind in one["name"] for kind in NARROW):
            assert (one["wide_loads"] > 0) == ("uneven" not in one["name"]), one


def test_the_recorded_figures_are_of_the_present_kernels() -> None:
    """`python -m kernels.ahead_of_time --out benchmarks/results` renews them."""
    recorded = json.loads((ROOT / "benchmarks" / "results" / "compiled.json").read_text())["kernels"]
    expected = [(one.name, each) for one in variants() for each in CAPABILITIES if each >= one.least]
    assert [(one["name"], one["capability"]) for one in recorded] == expected

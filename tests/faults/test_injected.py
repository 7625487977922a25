"""The faults fit the source and name tests that exist, so that `make faults` can be run at any revision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.__main__ import InvalidFault, faulty_text, verdict
from tests.faults.injected import FAULTS, Fault
from tests.faults.tree import ROOT, TestRun


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_its_file_and_names_tests_that_exist(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert faulty_text(fault, text) != text
    compile(faulty_text(fault, text), fault.file, "exec", dont_inherit=True)
    for test in fault.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in Path(ROOT / path).read_text(encoding="utf-8")


def test_old_text_must_stand_in_the_file_once() -> None:
    fault = replace(FAULTS[0], old="x = 1", new="x = 2")
    for text in ("x = 3", "x = 1; x = 1"):
        with pytest.raises(InvalidFault, match="expected once"):
            faulty_text(fault, text)


@pytest.mark.parametrize(
    ("code", "failed", "begins"),
    [
        (1, ("t.py::one[a]", "t.py::two"), "found"),
        (1, ("t.py::one[a]",), "NOT FOUND by t.py::two"),
        (1, ("t.py::one_more", "t.py::two"), "NOT FOUND by t.py::one"),
        (0, (), "NOT FOUND by t.py::one, t.py::two"),
        (2, ("t.py",), "pytest exited with 2"),
        (None, (), "pytest exited with None"),
    ],
)
def test_a_fault_is_found_when_all_its_tests_fail(
    code: int | None, failed: tuple[str, ...], begins: str
) -> None:
    fault = replace(FAULTS[0], tests=("t.py::one", "t.py::two"))
    assert verdict(fault, TestRun(code, failed, 1.0, "")).startswith(begins)

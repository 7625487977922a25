"""Mutants of one small module, the sample's dependence on its seed, and tests for every module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.areas import AREAS, Area, selected_tests
from tests.faults.mutants import compiles, mutants
from tests.faults.mutate import sample
from tests.faults.tree import ROOT

SOURCE = b'''
"""\xc3\xa9: positions are bytes."""
LIMIT: int = 3


@lru_cache(maxsize=8)
def count(\xc3\xa9: Literal[1], *rows: int) -> int:
    total = len(rows)
    if total is  not None and rows:
        total += rows[0]
    logger.info("no mutant", 5)
    rows.clear()
    first = total
    return total * 2 if f"{total + 1}" else None
'''


def changes() -> set[tuple[int, str, str, str]]:
    return {(each.line, each.operator, each.before, each.after) for each in mutants("m.py", SOURCE)}


def test_every_operator_changes_its_own_text() -> None:
    assert changes() == {
        (3, "integer", "3", "4"),
        (8, "deletion", "total = len(rows)", "pass"),
        (9, "negation", "total is  not None and rows", "not (total is  not None and rows)"),
        (9, "comparison", "is  not", "is"),
        (9, "junction", "and", "or"),
        (10, "arithmetic", "+", "-"),
        (10, "deletion", "total += rows[0]", "pass"),
        (10, "integer", "0", "1"),
        (12, "deletion", "rows.clear()", "pass"),
        (14, "return", 'return total * 2 if f"{total + 1}" else None', "return None"),
        (14, "negation", 'f"{total + 1}"', 'not (f"{total + 1}")'),
        (14, "arithmetic", "*", "/"),
        (14, "integer", "2", "3"),
    }


def test_a_mutant_changes_nothing_else() -> None:
    text = SOURCE.decode()
    for mutant in mutants("m.py", SOURCE):
        lines = mutant.apply(SOURCE).splitlines()
        assert [
            number
            for number, pair in enumerate(zip(lines, text.splitlines(), strict=True), 1)
            if pair[0] != pair[1]
        ] == [mutant.line]


def test_keys_survive_changes_elsewhere() -> None:
    before = {mutant.key for mutant in mutants("m.py", SOURCE)}
    after = {
        mutant.key
        for mutant in mutants("m.py", b"import os\n\n\ndef added() -> int:\n    return 1\n" + SOURCE)
    }
    assert len(before) == len(mutants("m.py", SOURCE))
    assert before < after


def test_text_that_python_refuses_is_no_mutant() -> None:
    assert compiles("def count(): pass")
    assert not compiles("return 1")


def test_a_sample_depends_on_its_seed_alone() -> None:
    areas = [Area("log", ("gateway/usage/wal_slots.py",)), Area("pool", ("worker_engine/memory_pool.py",))]
    drawn = sample(ROOT, seed=5, count=7, areas=areas)
    assert drawn[:4] == sample(ROOT, seed=5, count=4, areas=areas)
    assert [area for area, _ in drawn] == [*areas, *areas, *areas, areas[0]]
    assert drawn != sample(ROOT, seed=6, count=7, areas=areas)
    assert len(sample(ROOT, seed=5, count=10_000, areas=areas)) < 1_000


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
def test_every_module_of_an_area_has_tests(area: Area) -> None:
    files = area.files(ROOT)
    assert files
    for file in files:
        assert all(Path(ROOT / test).exists() for test in selected_tests(file, ROOT))

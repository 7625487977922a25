"""Packages import without cycles, and the figures that show it are right."""

from __future__ import annotations

import pytest

from tests.architecture.house import Imports, cycles, read_tree
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def imports() -> Imports:
    return read_tree(ROOT)[1]


def test_packages_import_without_cycles(imports: Imports) -> None:
    assert cycles(imports, depth=2) == []
    assert cycles(imports, depth=3) == []


def test_a_cycle_is_found() -> None:
    imports = Imports()
    imports.modules.update({"a.x.one": {"a.y.two"}, "a.y.three": {"a.x.four"}, "a.z": {"a.x.one"}})
    assert cycles(imports, depth=2) == [["a.x", "a.y"]]


def test_planes_import_nothing_of_each_other_but_the_http_server(imports: Imports) -> None:
    programs = {"demo", "optimizer"}
    between = {pair: count for pair, count in imports.between_planes.items() if pair[0] not in programs}
    assert between == {("controlplane", "gateway"): 1}

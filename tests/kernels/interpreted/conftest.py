"""These run in a process of their own, with Triton's interpreter: `tests/test_interpreted.py` starts it.

Of a grid of parameters the unmarked tests cover every pair of values; the rest of the grid is `slow`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.kernels.interpreted.quick_interpreter import install

    install()
    collect_ignore_glob = []
else:
    collect_ignore_glob = ["test_*.py"]

HERE = f"{Path(__file__).parent}/"
Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs_of(item: pytest.Function) -> frozenset[Pair]:
    """Every two parameters of a test with their values."""
    values = [(name, repr(value)) for name, value in sorted(item.callspec.params.items())]
    return frozenset(combinations(values, 2))


def beyond_pairs(grid: list[pytest.Function]) -> list[pytest.Function]:
    """Return the tests that are not needed to have every pair of two parameters' values at least once."""
    pairs = {item: pairs_of(item) for item in grid}
    missing, left = set[Pair]().union(*pairs.values()), list(grid)
    while missing:
        best = max(left, key=lambda item: len(pairs[item] & missing))
        missing -= pairs[best]
        left.remove(best)
    return left


# Before pytest deselects by `-m`.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    grids = defaultdict[str, list[pytest.Function]](list)
    for item in items:
        if not str(item.path).startswith(HERE):
            continue
        item.add_marker(pytest.mark.costly("Triton's interpreter"))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            grids[item.nodeid.partition("[")[0]].append(item)
    for grid in grids.values():
        # One parameter has no pairs: all of its values stay.
        if pairs_of(grid[0]):
            for item in beyond_pairs(grid):
                item.add_marker(pytest.mark.slow)

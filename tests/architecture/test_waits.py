"""Tests prove behaviour by events and driven clocks: none bounds elapsed time or sleeps without a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.test_house_rules import ROOT, tracked

LONGEST_SLEEP_S: Final = 0.2
_CLOCKS: Final = frozenset({"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time_ns"})

_WORTH_PARSING: Final = re.compile(r"sleep\(|monotonic|perf_counter|time_ns|\btime\(\)")
"""Parsing all tests takes seconds, this search a hundredth of one."""


def _is_clock(node: ast.AST) -> bool:
    """Return True for a call that reads the wall clock."""
    if not isinstance(node, ast.Call):
        return False
    match node.func:
        case (
            ast.Attribute(value=ast.Name(id="time"), attr="time")
            | ast.Attribute(value=ast.Call(), attr="time")
        ):
            return True
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in _CLOCKS
    return False


def _is_reading(node: ast.AST, readings: set[str]) -> bool:
    """Return True for a clock's reading: a call, or one of the names `readings`."""
    return _is_clock(node) or (isinstance(node, ast.Name) and node.id in readings)


def _is_elapsed(node: ast.AST, readings: set[str]) -> bool:
    """Return True for the difference of two readings."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and _is_reading(node.left, readings)
        and _is_reading(node.right, readings)
    )


def _clock_names(function: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that a function gives to readings of a clock, and those of elapsed times."""
    readings: set[str] = set()
    elapsed: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if _is_reading(node.value, readings):
                readings |= names
            elif _is_elapsed(node.value, readings):
                elapsed |= names
    return readings, elapsed


def upper_bounds(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of assertions that hold elapsed time below a bound."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            readings, elapsed = _clock_names(function)
            for statement in ast.walk(function):
                if isinstance(statement, ast.Assert):
                    smaller = [side for node in ast.walk(statement.test) for side in _smaller_sides(node)]
                    nodes = [node for side in smaller for node in ast.walk(side)]
                    if any(
                        _is_clock(node)
                        or _is_elapsed(node, readings)
                        or (isinstance(node, ast.Name) and node.id in elapsed)
                        for node in nodes
                    ):
                        yield statement.lineno


def _smaller_sides(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a comparison holds to be the smaller."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            if isinstance(operator, ast.Lt | ast.LtE):
                yield left
            elif isinstance(operator, ast.Gt | ast.GtE):
                yield right


def long_sleeps(tree: ast.AST, lines: list[str]) -> Iterator[int]:
    """Yield the lines of sleeps of LONGEST_SLEEP_S or more without a comment there or on the line above."""
    constants = {
        node.targets[0].id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _called_name(node) == "sleep":
            argument = node.args[0]
            seconds = constants.get(argument.id) if isinstance(argument, ast.Name) else None
            seconds = argument.value if isinstance(argument, ast.Constant) else seconds
            explained = any("#" in lines[index] for index in (node.lineno - 1, node.lineno - 2))
            if isinstance(seconds, int | float) and seconds >= LONGEST_SLEEP_S and not explained:
                yield node.lineno


def _called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _bounds_and_sleeps(path: Path) -> tuple[list[str], list[str]]:
    """Return (upper bounds, long sleeps) of one file, as `path:line`."""
    text = path.read_text()
    if not _WORTH_PARSING.search(text):
        return [], []
    tree, name = ast.parse(text), str(path.relative_to(ROOT))
    return (
        sorted({f"{name}:{line}" for line in upper_bounds(tree)}),
        sorted({f"{name}:{line}" for line in long_sleeps(tree, text.splitlines())}),
    )


def test_no_test_bounds_elapsed_time_or_sleeps_without_a_reason() -> None:
    """Speed belongs to benchmarks: a busy machine exceeds any bound. Await an event, or drive a clock."""
    bounds: list[str] = []
    sleeps: list[str] = []
    for path in tracked("tests/*.py"):
        found = _bounds_and_sleeps(path)
        bounds += found[0]
        sleeps += found[1]
    assert (bounds, sleeps) == ([], [])


@pytest.mark.parametrize(
    ("body", "bounded"),
    [
        ("began = time.monotonic(); work(); assert time.monotonic() - began < 5", True),
        ("began = time.monotonic(); took = time.monotonic() - began; assert 1 < took <= 5", True),
        ("began = time.monotonic(); work(); assert 5 > time.perf_counter() - began", True),
        ("deadline = time.time() + 5\n while x(): assert time.time() < deadline", True),
        ("loop = asyncio.get_running_loop(); began = loop.time(); assert monotonic() - began < 2", True),
        ("began = time.monotonic(); work(); assert time.monotonic() - began >= 5", False),
        ("first = time.monotonic(); second = time.monotonic(); assert first < second", False),
        ("began = time.time(); made = stamp(); assert began - 0.001 <= made <= time.time()", False),
        ("assert clock.now() < 5", False),
    ],
)
def test_what_counts_as_an_upper_bound(body: str, bounded: bool) -> None:
    tree = ast.parse(f"def test():\n {body}")
    assert bool(list(upper_bounds(tree))) is bounded


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("time.sleep(0.2)", True),
        ("await asyncio.sleep(1)", True),
        ("PAUSE = 3\nsleep(PAUSE)", True),
        ("time.sleep(1)  # the kernel's timer has no faster setting", False),
        ("# the kernel's timer has no faster setting\ntime.sleep(1)", False),
        ("time.sleep(0.01)", False),
    ],
)
def test_what_counts_as_a_long_sleep(body: str, found: bool) -> None:
    assert bool(list(long_sleeps(ast.parse(body), body.splitlines()))) is found

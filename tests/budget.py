"""Fails a run whose tests exceed their budget, and lists the slowest tests at the end of every run.

A test may take 2 CPU seconds and start one process. Two markers allow more: `slow` keeps a test out of
`make test`, `costly("reason")` keeps it in. The CPU time of fixtures that many tests share (a browser, a
gateway) is charged to no test. `--budget-report=FILE` writes each test's cost.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pytest

MAX_CPU_SECONDS: Final = 2.0
MAX_PROCESSES: Final = 1
LISTED_TESTS: Final = 30
_REFERENCE_SECONDS: Final = 0.029
"""What the work of `_slowdown` takes on the reference processor, an idle Xeon of 2023 (Sapphire Rapids)."""
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PROCESS_EVENTS: Final = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time, processes and elapsed time of a test.

    Attributes:
        cpu: CPU seconds of the test's process and of its descendants.
        processes: started by the test's process itself.
        wall: elapsed seconds.
    """

    cpu: float = 0.0
    processes: int = 0
    wall: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu + other.cpu, self.processes + other.processes, self.wall + other.wall)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu - other.cpu, self.processes - other.processes, self.wall - other.wall)


@dataclass(frozen=True, slots=True)
class TestCost:
    """One row of the report."""

    __test__ = False

    test: str
    exempt: bool
    cost: Cost

    def to_json(self) -> str:
        return json.dumps({"test": self.test, "exempt": self.exempt, **asdict(self.cost)})

    @property
    def over_budget(self) -> bool:
        return not self.exempt and (self.cost.cpu > MAX_CPU_SECONDS or self.cost.processes > MAX_PROCESSES)


def _slowdown() -> float:
    """Return how many times slower than the reference processor this one is now, at least 1.

    A busy or older processor needs more CPU seconds for the same work.
    """
    seconds = []
    for _ in range(3):
        began = time.process_time()
        rows = [{"name": f"row {number}", "value": number * 7 % 13} for number in range(20_000)]
        json.dumps(sorted(rows, key=lambda row: (row["value"], row["name"])))
        seconds.append(time.process_time() - began)
    return max(1.0, statistics.median(seconds) / _REFERENCE_SECONDS)


def _living_descendants_cpu(process: int) -> float:
    """Return the CPU seconds of all living descendants and of the children that they have reaped.

    Of a process or thread that ends between two reads, the parent's account tells.
    """
    total = 0.0
    for child in _children(process):
        with suppress(OSError):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
            total += _living_descendants_cpu(child)
    return total


def _children(process: int) -> list[int]:
    """Return the living children of all threads of a process."""
    children: list[int] = []
    for thread in os.listdir(f"/proc/{process}/task"):
        with suppress(OSError):
            children += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    return children


class CostMeter:
    """Measures each test in the process that runs it, and attaches the cost to the test's last report."""

    def __init__(self) -> None:
        self._processes = 0
        self._shared = Cost()
        self._in_shared_fixture = False
        sys.addaudithook(self._count_process)

    def _count_process(self, event: str, _: tuple[Any, ...]) -> None:
        if event in _PROCESS_EVENTS:
            self._processes += 1

    def _total(self) -> Cost:
        """Return what this pytest process has used since it started."""
        own, reaped = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        cpu = own.ru_utime + own.ru_stime + reaped.ru_utime + reaped.ru_stime
        # Systems other than Linux have no /proc: there only ended processes count.
        with suppress(OSError):
            cpu += _living_descendants_cpu(os.getpid())
        return Cost(cpu, self._processes, time.monotonic())

    @pytest.fixture(autouse=True)
    def _measure_cost(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Enclose the fixtures of the test's own scope: pytest sets up wider ones before."""
        self._shared = Cost()
        before = self._total()
        yield
        cost = self._total() - before - self._shared
        if cost.cpu > MAX_CPU_SECONDS:
            cost = Cost(cost.cpu / _slowdown(), cost.processes, cost.wall)
        exempt = any(request.node.get_closest_marker(marker) for marker in ("slow", "costly"))
        request.node.stash[_COST] = TestCost(request.node.nodeid, exempt, cost)

    @contextmanager
    def uncharged(self) -> Iterator[None]:
        """Deduct what runs inside from the cost of the test that is running."""
        if self._in_shared_fixture:
            yield
            return
        before, self._in_shared_fixture = self._total(), True
        try:
            yield
        finally:
            self._in_shared_fixture = False
            self._shared += self._total() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Deduct shared fixtures that a test asks for while it runs."""
        if fixturedef.scope == "function":
            return (yield)
        with self.uncharged():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown" and (cost := item.stash.get(_COST, None)):
            report.user_properties.append(("cost", cost.to_json()))
        return report


METER: Final = CostMeter()
_COST: Final = pytest.StashKey[TestCost]()


class CostReport:
    """Collects the costs of all tests, those of other processes of the run included, and judges them."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: list[TestCost] = []

    @property
    def over_budget(self) -> list[TestCost]:
        return [row for row in self._rows if row.over_budget]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if report.when == "teardown" and name == "cost":
                row = json.loads(str(value))
                cost = Cost(row["cpu"], row["processes"], row["wall"])
                self._rows.append(TestCost(row["test"], row["exempt"], cost))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._path:
            self._path.write_text("".join(row.to_json() + "\n" for row in self._rows))
        if exitstatus == pytest.ExitCode.OK and self.over_budget:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._rows) > LISTED_TESTS:
            _write_rows(
                terminalreporter, f"slowest {LISTED_TESTS} tests by CPU time", self._rows, LISTED_TESTS
            )
        if self.over_budget:
            limits = f"{MAX_CPU_SECONDS:g} CPU seconds and {MAX_PROCESSES} process"
            _write_rows(terminalreporter, f"over the budget of {limits}", self.over_budget, None)
            terminalreporter.line(
                "FAILED: make these tests cheaper, or mark them `slow` or `costly` (docs/testing.md)"
            )


def _write_rows(
    terminal: pytest.TerminalReporter, title: str, rows: list[TestCost], limit: int | None
) -> None:
    terminal.section(title)
    for row in sorted(rows, key=lambda row: row.cost.cpu, reverse=True)[:limit]:
        cost = row.cost
        terminal.line(f"{cost.cpu:6.2f} CPU s {cost.wall:6.2f} s {cost.processes:3} processes  {row.test}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--budget-report", type=Path, metavar="FILE", help="write each test's cost as JSON lines"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(METER, "cost_meter")
    if not hasattr(config, "workerinput"):  # a pytest-xdist worker leaves the judgement to its controller
        config.pluginmanager.register(CostReport(config.getoption("--budget-report")), "cost_report")

"""Every page on PostgreSQL, for a tenant with 10,000 adapters and related data.

One process requests the pages from the web process's own application under the row policies, including the
compression of the answer and the cleanup after it, without an HTTP server. GRAFTWORK_TEST_POSTGRES_URL names
the server; a database is created there and dropped.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.controlplane import database, isolated_environ, web_role
from benchmarks.figure import Figure
from benchmarks.processes import free_port, run_python, start_valkey

ADAPTERS: Final = 10_000
ROUNDS: Final = 60
QUICK_ADAPTERS, QUICK_ROUNDS = 200, 3
GOAL_MS: Final = 150.0
"""Goal for the 95th percentile of each page's wall time."""


class Visits(NamedTuple):
    """Measurements of one page, one per visit.

    Attributes:
        wall: milliseconds of wall time.
        cpu: milliseconds of the process's CPU time, without PostgreSQL's.
        queries: number of queries of a visit.
    """

    wall: Sequence[float]
    cpu: Sequence[float]
    queries: int


def run(*, quick: bool = False, pages: Sequence[str] = ()) -> Iterator[Figure]:
    """Fill a database, request the pages in rounds, and yield a figure for each group of pages.

    Args:
        pages: only measure pages whose name begins with one of these.
    """
    adapters, rounds = (QUICK_ADAPTERS, QUICK_ROUNDS) if quick else (ADAPTERS, ROUNDS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        web, gateway, valkey = free_port(), free_port(), start_valkey(stack, folder)
        environ = isolated_environ(stack.enter_context(database()), folder, web, gateway, valkey)
        run_python(environ, "manage.py", "migrate", "-v0")
        filled = run_python(environ, "-m", "benchmarks.pages.fill", "--adapters", str(adapters))
        asked = folder / "asked.json"
        asked.write_text(filled.splitlines()[-1])
        web_environ = environ | {"GRAFTWORK_DATABASE_URL": web_role(environ)}
        only = ("--pages", *pages) if pages else ()
        command = ("-m", "benchmarks.pages.visits", str(asked), "--rounds", str(rounds), *only)
        printed = run_python(web_environ, *command)
        answer = json.loads(printed.splitlines()[-1])
    visits = {name: Visits(**page) for name, page in answer["pages"].items()}
    yield from figures(visits, answer["groups"], answer["left_out"])


def figures(
    visits: Mapping[str, Visits], groups: Mapping[str, str], left_out: Sequence[str]
) -> Iterator[Figure]:
    """Yield a figure for each group, that of its slowest page; then the number of fast pages.

    Args:
        visits: by the page's name.
        groups: a page's name -> its group.
        left_out: pages that could not be opened, with their status.
    """
    by_group: dict[str, list[str]] = defaultdict(list)
    for name in visits:
        by_group[groups[name]].append(name)
    for group, names in sorted(by_group.items()):
        worst = max(names, key=lambda name: percentile(visits[name].wall))
        page = visits[worst]
        wall, cpu = percentile(page.wall), percentile(page.cpu)
        note = (
            f"{worst}, the slowest of {len(names)}: median {statistics.median(page.wall):.1f} ms,"
            f" CPU of the web process p95 {cpu:.1f} and median {statistics.median(page.cpu):.1f} ms,"
            f" {page.queries} queries"
        )
        yield Figure(
            "pages", f"p95 of {group}", round(wall, 1), "ms", goal=GOAL_MS, met=wall < GOAL_MS, note=note
        )
    slow = [name for name, page in visits.items() if percentile(page.wall) >= GOAL_MS]
    note = f"slower: {', '.join(slow) or 'none'}; not opened: {', '.join(left_out) or 'none'}"
    metric, fast = f"pages below {GOAL_MS:.0f} ms at p95", len(visits) - len(slow)
    yield Figure("pages", metric, fast, "pages", baseline=len(visits), note=note)


def percentile(values: Sequence[float]) -> float:
    """Return the 95th percentile; of fewer than 20 values the maximum."""
    return statistics.quantiles(values, n=20)[-1] if len(values) >= 20 else max(values)

"""`python -m tests.faults.mutate`: which of a seeded sample of mutants the tests find.

Each mutant is one line of `var/mutation/results-<seed>.jsonl`; a further run with the same seed goes on where
the last one ended. `--tree` compares another checkout: equal code yields equal mutants with an equal seed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Final, Literal

from tests.faults.areas import AREAS, Area, selected_tests
from tests.faults.mutants import Mutant, compiles, mutants
from tests.faults.tree import ROOT, TestRun, TreeCopy, tree_copy

TEST_SECONDS: Final = 100
"""Longest time of one test; a mutant may loop forever."""
MIN_RUN_SECONDS: Final = 120.0
SLOWER: Final = 4.0
"""A mutant's run may take so many times the seconds of the run without a mutant."""

Status = Literal["killed", "survived", "timeout"]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the results: a mutant, and the first test that found it."""

    id: str
    area: str
    file: str
    line: int
    operator: str
    before: str
    after: str
    status: Status
    killing_test: str
    seconds: float


class FailingTests(RuntimeError):
    """Tests that fail without any mutant, so they find nothing."""


def sample(
    checkout: Path, *, seed: int, count: int, areas: Sequence[Area] = AREAS
) -> list[tuple[Area, Mutant]]:
    """Draw mutants from every area in turn, by a hash of the seed and of the mutant's own code.

    A larger count adds mutants to those of a smaller one.
    """
    rounds = zip_longest(*(_ranked(area, checkout, seed) for area in areas))
    turns = ((area, mutant) for turn in rounds for area, mutant in zip(areas, turn, strict=True) if mutant)
    return list(islice(turns, count))


def _ranked(area: Area, checkout: Path, seed: int) -> Iterator[Mutant]:
    sources = {file: (checkout / file).read_bytes() for file in area.files(checkout)}
    found = [mutant for file, source in sources.items() for mutant in mutants(file, source)]
    found.sort(key=lambda mutant: hashlib.sha256(f"{seed}:{mutant.key}".encode()).digest())
    return (mutant for mutant in found if compiles(mutant.apply(sources[mutant.file])))


class Campaign:
    """Tests mutants in several copies of a checkout at a time.

    Args:
        copies: each is used by one mutant at a time.
        limit: seconds of one run of tests at most.
    """

    def __init__(self, checkout: Path, copies: Sequence[TreeCopy], *, limit: float) -> None:
        self._checkout = checkout
        self._limit = limit
        self._idle: SimpleQueue[TreeCopy] = SimpleQueue()
        for copy in copies:
            self._idle.put(copy)
        self._jobs = len(copies)
        self._limits: dict[tuple[str, ...], float] = {}
        self._baselines: dict[tuple[str, ...], Lock] = {}

    def run(self, chosen: Sequence[tuple[Area, Mutant]]) -> Iterator[Result]:
        """Yield results as they come, in the order of `chosen`.

        Raises:
            FailingTests: tests fail without a mutant.
        """
        self._baselines = {selected_tests(mutant.file, self._checkout): Lock() for _, mutant in chosen}
        with ThreadPoolExecutor(self._jobs) as pool:
            yield from pool.map(lambda pair: self._result(*pair), chosen)

    def _test(self, copy: TreeCopy, tests: tuple[str, ...], limit: float) -> TestRun:
        return copy.test(tests, "-x", f"--timeout={TEST_SECONDS}", limit=limit)

    def _time_limit(self, copy: TreeCopy, tests: tuple[str, ...]) -> float:
        """Return the time limit of these tests, from a run without a mutant before their first mutant."""
        with self._baselines[tests]:
            if tests not in self._limits:
                run = self._test(copy, tests, self._limit)
                if not run.passed:
                    raise FailingTests(f"{' '.join(tests)} exited with {run.code}, no mutant:\n{run.output}")
                print(f"{run.seconds:6.1f} s  without a mutant: {' '.join(tests)}", flush=True)
                self._limits[tests] = min(self._limit, max(MIN_RUN_SECONDS, SLOWER * run.seconds))
            return self._limits[tests]

    def _result(self, area: Area, mutant: Mutant) -> Result:
        tests = selected_tests(mutant.file, self._checkout)
        copy = self._idle.get()
        try:
            limit = self._time_limit(copy, tests)
            source = (copy.folder / mutant.file).read_bytes()
            with copy.changed(mutant.file, mutant.apply(source)):
                run = self._test(copy, tests, limit)
        finally:
            self._idle.put(copy)
        status: Status = "timeout" if run.code is None else "survived" if run.passed else "killed"
        return Result(
            mutant.key,
            area.name,
            mutant.file,
            mutant.line,
            mutant.operator,
            mutant.before,
            mutant.after,
            status,
            run.failed[0] if run.failed else "",
            round(run.seconds, 1),
        )


def read_results(path: Path) -> dict[str, Result]:
    """Return the results of an earlier run by mutant; empty when there are none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {result.id: result for result in results}


def summary(results: Iterable[Result]) -> str:
    """Return a table with the numbers of mutants by area and status."""
    counts = Counter((result.area, result.status) for result in results)
    rows = [f"{'area':24}{'killed':>8}{'timeout':>8}{'survived':>9}{'found':>7}"]
    for name in [*(area.name for area in AREAS), "all"]:
        killed, timeout, survived = (
            sum(
                number
                for (area, status), number in counts.items()
                if status == wanted and name in (area, "all")
            )
            for wanted in ("killed", "timeout", "survived")
        )
        if total := killed + timeout + survived:
            rows.append(f"{name:24}{killed:8}{timeout:8}{survived:9}{(killed + timeout) / total:7.0%}")
    return "\n".join(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="mutants of all areas together")
    names = [area.name for area in AREAS]
    parser.add_argument("--area", action="append", choices=names, help="draw from these alone (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tested at a time, each in its own copy")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of one run of tests at most")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to mutate, with its tests")
    parser.add_argument("--out", type=Path, help="results (default: var/mutation/results-SEED.jsonl)")
    return parser.parse_args()


def main() -> int:
    asked = _arguments()
    checkout = asked.tree.resolve()
    out = asked.out or ROOT / "var" / "mutation" / f"results-{asked.seed}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    areas = [area for area in AREAS if not asked.area or area.name in asked.area]
    chosen = sample(checkout, seed=asked.seed, count=asked.count, areas=areas)
    if not chosen:
        sys.exit(f"{checkout} has no source of {', '.join(area.name for area in areas)}")
    results = read_results(out)
    pending = [(area, mutant) for area, mutant in chosen if mutant.key not in results]
    print(f"{len(chosen)} mutants of {checkout}, {len(pending)} of them to test", flush=True)
    with ExitStack() as stack, out.open("a", encoding="utf-8") as file:
        copies = [stack.enter_context(tree_copy(checkout)) for _ in range(asked.jobs if pending else 0)]
        for result in Campaign(checkout, copies, limit=asked.limit).run(pending) if pending else ():
            results[result.id] = result
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            place = f"{result.file}:{result.line}"
            print(f"{result.seconds:6.1f} s  {result.status:9}{result.operator:11}{place}", flush=True)
    print(summary(results[mutant.key] for _, mutant in chosen))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FailingTests as failure:
        sys.exit(str(failure))

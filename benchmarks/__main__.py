"""`python -m benchmarks [--quick] [name...]`: one JSON line a figure, and benchmarks/results/<name>.json."""

from __future__ import annotations

import argparse
import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.figure import Figure
from benchmarks.machine import facts

RESULTS: Final = Path(__file__).resolve().parent / "results"
NAMES: Final = ("gateway", "engine", "adapters", "kernels")
QUICK: Final = ("engine", "adapters")
"""Benchmarks that have a shorter form."""


def run(name: str, *, quick: bool = False) -> list[Figure]:
    """Runs one benchmark, prints its figures as they come and writes its result file, unless `quick`."""
    figures: list[Figure] = []
    options = {"quick": True} if quick else {}
    for figure in importlib.import_module(f"benchmarks.{name}").run(**options):
        print(figure.to_json(), flush=True)
        figures.append(figure)
    if quick:
        return figures
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": facts(), "figures": [asdict(figure) for figure in figures]}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--quick", action="store_true", help=f"a part of {', '.join(QUICK)}, in minutes")
    arguments = parser.parse_args()
    names = arguments.names or (QUICK if arguments.quick else NAMES)
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(NAMES)}")
    if arguments.quick and (other := sorted(set(names) - set(QUICK))):
        parser.error(f"--quick: {other[0]} has no shorter form, only {', '.join(QUICK)}")
    for name in names:
        run(name, quick=arguments.quick)


if __name__ == "__main__":
    main()

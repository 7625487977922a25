"""`python -m benchmarks [--quick] [name...]`: prints one JSON line per figure, writes
benchmarks/results/<name>.json.

`python -m benchmarks deployments --adapters N` runs it with another number of adapters and writes no file.
`python -m benchmarks pages --pages usage home` only runs pages with these name prefixes and writes no file.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure
from worker_engine.machine import facts

RESULTS: Final = Path(__file__).resolve().parent / "results"
NAMES: Final = (
    "gateway",
    "admission",
    "observability",
    "sagemaker",
    "engine",
    "adapters",
    "adapter_load",
    "coldstart",
    "kernels",
    "moe",
    "controlplane",
    "pages",
    "metering",
    "deployments",
    "uploads",
    "registration",
    "optimization",
    "routing",
    "simulator",
)
QUICK: Final = (
    "gateway",
    "engine",
    "adapters",
    "moe",
    "pages",
    "uploads",
    "optimization",
    "routing",
    "simulator",
)
"""Benchmarks that have a shorter form."""


def run(name: str, *, quick: bool = False, adapters: int = 0, pages: Sequence[str] = ()) -> list[Figure]:
    """Run one benchmark, print its figures as they come and write its result file.

    No file is written if the run is reduced by `quick`, `adapters` (for deployments; 0 for the default) or
    `pages`.
    """
    figures: list[Figure] = []
    given: dict[str, Any] = {"quick": quick, "adapters": adapters, "pages": pages}
    options = {option: value for option, value in given.items() if value}
    for figure in importlib.import_module(f"benchmarks.{name}").run(**options):
        print(figure.to_json(), flush=True)
        figures.append(figure)
    if options:
        return figures
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": facts(), "figures": [asdict(figure) for figure in figures]}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--quick", action="store_true", help=f"a part of {', '.join(QUICK)}, in minutes")
    parser.add_argument("--adapters", type=int, default=0, metavar="N", help="of deployments, instead of 300")
    parser.add_argument("--pages", nargs="+", default=[], metavar="page", help="of pages, those alone")
    arguments = parser.parse_args()
    names = arguments.names or (QUICK if arguments.quick else NAMES)
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(NAMES)}")
    if arguments.quick and (other := sorted(set(names) - set(QUICK))):
        parser.error(f"--quick: {other[0]} has no shorter form, only {', '.join(QUICK)}")
    if arguments.adapters < 0 or (arguments.adapters and names != ["deployments"]):
        parser.error("--adapters: a number of 1 or more, for deployments alone")
    if arguments.pages and names != ["pages"]:
        parser.error("--pages: names of pages, for the benchmark `pages` alone")
    for name in names:
        run(name, quick=arguments.quick, adapters=arguments.adapters, pages=arguments.pages)


if __name__ == "__main__":
    main()

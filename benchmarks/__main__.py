"""`python -m benchmarks [name...]`: one JSON line a figure, and benchmarks/results/<name>.json."""

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
NAMES: Final = ("gateway", "engine", "kernels")


def run(name: str) -> list[Figure]:
    """Runs one benchmark, prints its figures as they come and writes its result file."""
    figures: list[Figure] = []
    for figure in importlib.import_module(f"benchmarks.{name}").run():
        print(figure.to_json(), flush=True)
        figures.append(figure)
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": facts(), "figures": [asdict(figure) for figure in figures]}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; all by default")
    names = parser.parse_args().names or NAMES
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(NAMES)}")
    for name in names:
        run(name)


if __name__ == "__main__":
    main()

"""`python -m tests.faults [NAME...]`, `python -m tests.faults mutate --seed N --count N`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.faults.injected import FAULTS, survivors
from tests.faults.mutate import mutate
from tests.faults.tree import copied


def main(arguments: list[str]) -> int:
    """The exit status: 1 if a fault was not noticed. Surviving mutants are a report, no failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    if arguments[:1] == ["mutate"]:
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--count", type=int, default=200)
        parser.add_argument("--only", default="", help="part of the path of the modules to mutate")
        parser.add_argument("--output", type=Path, default=Path("var/mutants.json"))
        options = parser.parse_args(arguments[1:])
        with copied() as tree:
            mutate(tree, seed=options.seed, count=options.count, only=options.only, output=options.output)
        return 0
    parser.add_argument("names", nargs="*", choices=[[], *(fault.name for fault in FAULTS)], metavar="NAME")
    names = parser.parse_args(arguments).names
    with copied() as tree:
        wrong = survivors(tree, tuple(fault for fault in FAULTS if not names or fault.name in names))
    print("\n".join(wrong) or "every fault is noticed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

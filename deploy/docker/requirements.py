"""Prints the requirements of one role from pyproject.toml: `requirements.py EXTRA...`.

Reads nothing else of the project, so that an image's dependency layer stays cached until they change.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> int:
    """Prints one requirement a line; returns the exit status."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    if unknown := sorted(set(extras) - set(optional)):
        print(f"pyproject.toml has no extra {unknown[0]}; it has {', '.join(optional)}", file=sys.stderr)
        return 1
    requirements = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    print("\n".join(requirements))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

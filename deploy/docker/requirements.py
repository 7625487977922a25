"""Print the locked packages of one role with their hashes: `requirements.py EXTRA...`.

Reads requirements.txt alone, so that an image's dependency layer stays cached until the lock changes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main(extras: list[str]) -> int:
    """Print the part of requirements.txt that the extras need; return the exit status."""
    lock = Path("requirements.txt").read_text()
    packages = [
        (set(roles.split(", ")), pin)
        for roles, pin in re.findall(r"^# for (.+)\n((?:[^#].*\n)+)", lock, re.MULTILINE)
    ]
    known = set().union(*(roles for roles, _ in packages))
    if unknown := sorted(set(extras) - known):
        names = ", ".join(sorted(known))
        print(f"requirements.txt has no extra {unknown[0]}; it has {names}", file=sys.stderr)
        return 1
    print("".join(pin for roles, pin in packages if roles & set(extras)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

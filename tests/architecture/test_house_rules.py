"""Rules of the house that a reader relies on: short files, no catch-all modules, no machine's paths."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CEILING = 400
CATCH_ALL = {"utils.py", "helpers.py", "common.py", "misc.py"}


@cache
def tracked(pattern: str) -> list[Path]:
    listing = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode != 0:
        pytest.skip("not a git checkout: the list of the project's own files is git's")
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).exists()]


def test_files_stay_short() -> None:
    exempt = re.compile(r"/(migrations|kernels)/")
    long = {
        str(path.relative_to(ROOT)): lines
        for path in tracked("*.py")
        if not exempt.search(str(path)) and (lines := len(path.read_text().splitlines())) > CEILING
    }
    assert long == {}


def test_no_catch_all_modules() -> None:
    assert [path for path in tracked("*.py") if path.name in CATCH_ALL] == []


def test_no_path_of_one_machine() -> None:
    pattern = re.compile(r"(?<![\w.])/(root|home/\w+|work)/")
    offenders = [
        str(path.relative_to(ROOT))
        for path in tracked("*")
        if (path.suffix in {".py", ".md", ".toml", ".yml", ".json", ".html"} or path.name == "Makefile")
        and path != Path(__file__)
        and pattern.search(path.read_text())
    ]
    assert offenders == []

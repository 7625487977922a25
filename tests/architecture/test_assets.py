"""`npm ci && npm run build` must work from what is committed, on every platform, and leave the tree clean."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

CONSOLE = ROOT / "static" / "console"


def resolved(packages: dict[str, Any], place: str, name: str) -> bool:
    """Return True if Node finds package `name`, required by the package at `place`, in the lock file."""
    while True:
        if f"{place}/node_modules/{name}".lstrip("/") in packages:
            return True
        if not place:
            return False
        place = place.rpartition("/node_modules/")[0] if "/node_modules/" in place else ""


def requirements(packages: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for place, package in packages.items():
        for kind in ("dependencies", "devDependencies", "optionalDependencies"):
            for name in package.get(kind, {}):
                yield place, name


def test_the_lock_file_has_every_package_of_every_platform() -> None:
    """npm writes a lock file without complaint though a platform's package was not to be had, and `npm ci`,
    here or there, refuses it later."""
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    missing = [need for need in requirements(packages) if not resolved(packages, *need)]
    assert missing == []
    bundled = {place for place, package in packages.items() if package.get("inBundle")}
    unproven = [place for place, package in packages.items() if place and "integrity" not in package]
    assert set(unproven) <= bundled
    package = json.loads((ROOT / "package.json").read_text())
    assert packages[""]["devDependencies"] == package["devDependencies"]


def test_the_styles_are_of_the_version_that_is_locked() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    banner = re.match(r"/\*! tailwindcss v([0-9.]+) ", (CONSOLE / "app.css").read_text())
    assert banner
    assert banner[1] == packages["node_modules/tailwindcss"]["version"]


@pytest.mark.parametrize("path", sorted(CONSOLE.glob("*.gz")), ids=lambda path: path.name)
def test_what_is_sent_compressed_is_what_is_there(path: Path) -> None:
    assert gzip.decompress(path.read_bytes()) == path.with_suffix("").read_bytes()


@pytest.mark.skipif(not (ROOT / "node_modules").is_dir(), reason="needs `npm ci`")
def test_a_build_changes_nothing(tmp_path: Path) -> None:
    for folder in ("frontend", "templates", "static", "controlplane/console"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "package.json", tmp_path)
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    subprocess.run(["node", "frontend/build.mjs"], cwd=tmp_path, check=True, capture_output=True)
    for path in sorted(CONSOLE.iterdir()):
        assert (tmp_path / "static" / "console" / path.name).read_bytes() == path.read_bytes(), path.name

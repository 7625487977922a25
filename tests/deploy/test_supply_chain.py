"""Every installed package has its hashes in the lock, and every pulled image has a digest."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import ROOT

DOCKER = ROOT / "deploy" / "docker"
DIGEST = re.compile(r"\S+:\S+@sha256:[0-9a-f]{64}")
LOCKED = "--no-deps --require-hashes --only-binary :all: -r"
BLOCK = re.compile(
    r"# for (?P<extras>.+)\n"
    r"(?P<name>\S+)==(?P<version>[^\s;]+)(; platform_system == 'Linux')?"
    r"( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
)


def locked_packages() -> dict[str, tuple[set[str], Version]]:
    """Map each locked package to the extras that need it and its version; fail if a line has another form."""
    packages = {}
    for block in re.split(r"^(?=# for )", (ROOT / "requirements.txt").read_text(), flags=re.MULTILINE)[1:]:
        match = BLOCK.fullmatch(block)
        assert match, block[:200]
        packages[match["name"]] = (set(match["extras"].split(", ")), Version(match["version"]))
    return packages


def required() -> dict[str, list[str]]:
    """Map each extra that is locked to its requirements."""
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional = tree["project"]["optional-dependencies"]
    del optional["aws"]  # 1 GB, installed by hand for the look-ups of instance types
    client = tomllib.loads((ROOT / "clients" / "python" / "pyproject.toml").read_text())["project"]
    optional["dev"] += client["optional-dependencies"]["cli"]
    optional["controlplane"] += client["dependencies"]
    requirements = {extra: tree["project"]["dependencies"] + lines for extra, lines in optional.items()}
    return requirements | {"build": tree["build-system"]["requires"]}


def test_each_extra_is_locked_with_all_that_it_needs() -> None:
    packages = locked_packages()
    closure = runpy.run_path(str(ROOT / "deploy" / "lock.py"))["closure"]
    for extra, lines in required().items():
        names = {name for name, (extras, _) in packages.items() if extra in extras}
        assert closure(lines) == names, f"{extra} needs other packages: make lock"
        for requirement in map(Requirement, lines):
            name = canonicalize_name(requirement.name)
            if name != "torch":
                assert packages[name][1] in requirement.specifier, f"{name} has another version: make lock"


def test_torch_alone_is_pinned_without_hashes() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (pin,) = (line for line in lines if not line.startswith("#"))
    assert re.fullmatch(r"torch==[\d.]+", pin)


def print_requirements(*extras: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, DOCKER / "requirements.py", *extras]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)


def test_an_image_gets_the_locked_packages_of_its_extras() -> None:
    output = print_requirements("gateway", "observability").stdout
    names = set(re.findall(r"^(\S+)==", output, re.MULTILINE))
    wanted = {"gateway", "observability"}
    assert names == {name for name, (extras, _) in locked_packages().items() if extras & wanted}
    assert {"aiohttp", "multidict", "redis", "hiredis", "opentelemetry-sdk"} <= names
    assert not {"django", "boto3", "torch"} & names
    assert output.count("--hash") > len(names)


def test_an_unknown_extra_is_refused() -> None:
    run = print_requirements("gatway")
    assert run.returncode == 1
    assert "requirements.txt has no extra gatway; it has build, controlplane" in run.stderr


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.Dockerfile")), ids=lambda path: path.name)
def test_an_image_has_a_base_by_digest_and_installs_with_hashes(path: Path) -> None:
    text = path.read_text()
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    stages = re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE)
    assert all(base in stages or DIGEST.fullmatch(base) for base in bases)
    installs = re.findall(r"pip install .+", text)
    assert installs
    assert all(LOCKED in command or "-c constraints.txt torch" in command for command in installs)


def test_compose_pulls_images_by_digest() -> None:
    images = re.findall(r"^ +image: (\S+)", (ROOT / "docker-compose.yml").read_text(), re.MULTILINE)
    pulled = [image for image in images if not image.startswith("graftwork/")]
    assert len(pulled) == 3
    assert all(DIGEST.fullmatch(image) for image in pulled)

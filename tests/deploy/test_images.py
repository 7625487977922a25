"""Images hold what their plane imports of the others, and secrets have no default anywhere."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCKER = ROOT / "deploy" / "docker"
SECRETS = (
    "GRAFTWORK_SECRET_KEY",
    "GRAFTWORK_FLEET_TOKEN",
    "POSTGRES_PASSWORD",
    "POSTGRES_WEB_PASSWORD",
    "S3_SECRET_KEY",
)


@pytest.mark.parametrize(("plane", "image"), [("controlplane", "web"), ("gateway", "gateway")])
def test_an_image_copies_each_module_that_its_plane_may_import(plane: str, image: str) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    contract = next(each for each in contracts if each["id"] == plane)
    allowed = [line.split(" -> ")[1] for line in contract["ignore_imports"] if line.startswith(f"{plane}.")]
    copied = re.findall(r"^COPY (.+) \S+$", (DOCKER / f"{image}.Dockerfile").read_text(), re.MULTILINE)
    files = {file for line in copied for file in line.split()}
    assert allowed
    assert {f"{module.replace('.', '/')}.py" for module in allowed} <= files


def test_what_the_web_image_copies_of_the_gateway_can_be_imported(tmp_path: Path) -> None:
    """All that it imports in turn, too."""
    text = (DOCKER / "web.Dockerfile").read_text()
    copied = re.findall(r"^COPY ((?:worker_engine|gateway)/.+) (\S+)$", text, re.MULTILINE)
    for files, folder in copied:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for file in files.split():
            shutil.copy(ROOT / file, tmp_path / file)
    command = [
        sys.executable,
        "-c",
        "import gateway.wire, gateway.wire_keys, gateway.wire_limits, gateway.addresses",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PATH": "/usr/bin"})
    assert done.returncode == 0, done.stderr


def test_the_web_image_has_the_presets_stored_run() -> None:
    """Where the pages read it; of results, files alone are let into the build."""
    assert 'PRESET_RUN_FILE = ROOT / "benchmarks" / "results" / "presets.json"' in (
        ROOT / "controlplane" / "settings.py"
    ).read_text(encoding="utf-8")
    lines = (DOCKER / "web.Dockerfile").read_text(encoding="utf-8").splitlines()
    assert "COPY benchmarks/results benchmarks/results" in lines
    assert "!benchmarks/results/*.json" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.Dockerfile")), ids=lambda path: path.name)
def test_what_an_image_runs_is_not_root(path: Path) -> None:
    instructions = re.findall(r"^(FROM|USER|CMD|ENTRYPOINT)\b ?(.*)$", path.read_text(), re.MULTILINE)
    user = ""
    for name, value in instructions:
        user = {"USER": value}.get(name, user)
        if name in ("CMD", "ENTRYPOINT"):
            assert user == "graftwork"


def test_secrets_are_made_once_and_for_their_owner(tmp_path: Path) -> None:
    tree = tmp_path
    (tree / "deploy" / "docker").mkdir(parents=True)
    shutil.copy(DOCKER / "env.sh", tree / "deploy" / "docker")
    shutil.copy(ROOT / ".env.example", tree)
    command = ["sh", str(tree / "deploy" / "docker" / "env.sh")]
    subprocess.run(command, check=True, capture_output=True)
    made = tree / ".env"
    values = dict(line.split("=", 1) for line in made.read_text().splitlines() if re.match(r"[A-Z]", line))
    assert all(re.fullmatch(r"[0-9a-f]{48}", values[name]) for name in SECRETS)
    assert len({values[name] for name in SECRETS}) == len(SECRETS)
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    assert again.returncode == 1
    assert "is there already" in again.stderr
    assert values["GRAFTWORK_SECRET_KEY"] in made.read_text()


def test_compose_starts_with_no_secret_unset() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for name in SECRETS:
        uses = re.findall(rf"\$\{{{name}([^}}]*)\}}", text)
        assert uses, name
        assert all(use.startswith(":?") for use in uses), f"{name} has a default"
    assert "privileged" not in text

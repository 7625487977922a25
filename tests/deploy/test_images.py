"""Images hold what their plane imports of the others, and secrets have no default anywhere."""

from __future__ import annotations

import ast
import re
import shutil
import stat
import subprocess
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


@pytest.mark.parametrize(
    ("file", "stage", "roots"),
    [
        ("web", "web", ("controlplane", "manage.py", "deploy/docker/bucket.py", "deploy/docker/health.py")),
        ("web", "seed", ("deploy/docker/seed.py", "demo/seed.py")),
        ("web", "optimizer", ("controlplane", "worker_engine", "optimizer")),
        ("gateway", "", ("gateway",)),
        ("worker", "worker", ("worker_engine",)),
        ("worker", "model", ("demo/model.py",)),
        ("worker", "sagemaker-local", ("sagemaker_local", "worker_engine")),
        ("worker-gpu", "", ("worker_engine",)),
    ],
)
@pytest.mark.costly("imports each program in a process")
def test_an_image_holds_all_that_its_program_imports(file: str, stage: str, roots: tuple[str, ...]) -> None:
    """Reads the files' text: an interpreter with the project installed would find missing files too."""
    held = copied(DOCKER / f"{file}.Dockerfile", stage)
    waiting = [path for path in held if any(path.is_relative_to(root) for root in roots)]
    assert waiting
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        for module in imported(path):
            needed = module_files(module)
            assert needed <= held, f"{path} imports {module}, which the image lacks"
            waiting += needed - seen
            seen |= needed


def copied(dockerfile: Path, stage: str) -> set[Path]:
    """Return the Python files of a build stage, with those of its base stages."""
    stages: dict[str, tuple[str, set[Path]]] = {}
    files: set[Path] = set()
    for word, rest in re.findall(r"^(FROM|COPY) (.+)$", dockerfile.read_text(), re.MULTILINE):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            files = set()
            stages[name] = (base, files)
        elif not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                path = ROOT / source
                found = path.rglob("*.py") if path.is_dir() else [path]
                files.update(each.relative_to(ROOT) for each in found)
    held: set[Path] = set()
    while stage in stages:
        base, files = stages[stage]
        held, stage = held | files, base
    return held


def imported(path: Path) -> set[str]:
    """The project's modules that a file imports, in functions too, but not for the type checker alone."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in types:
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and id(node) not in types:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if module_files(name)}


def module_files(name: str) -> set[Path]:
    """A module's file and its packages' own; nothing for what is no module of the project."""
    parts = name.split(".")
    folder = Path(*parts)
    file = (
        folder.with_suffix(".py") if (ROOT / folder.with_suffix(".py")).is_file() else folder / "__init__.py"
    )
    if not (ROOT / file).is_file():
        return set()
    packages = (Path(*parts[:count], "__init__.py") for count in range(1, len(parts)))
    return {file, *(package for package in packages if (ROOT / package).is_file())}


def test_the_web_image_has_the_presets_stored_runs() -> None:
    """The files are where the pages read them; of the results only files enter the build."""
    assert 'PRESET_RUN_FOLDER = ROOT / "benchmarks" / "results"' in (
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


@pytest.mark.costly("runs the script twice")
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

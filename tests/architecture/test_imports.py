"""The architecture is a test: each import contract of pyproject.toml holds, and catches a breach."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
PACKAGES: list[str] = CONFIG["root_packages"]

# (file that breaks the rule, the line it gains, id of the contract that must catch it, what the report says)
BREACHES = [
    (
        "kernels/lora/breach.py",
        "import worker_engine.config",
        "planes",
        "kernels.lora.breach -> worker_engine.config",
    ),
    ("worker_engine/breach.py", "import django", "worker", "worker_engine.breach -> django"),
    (
        "worker_engine/breach.py",
        "import gateway.settings",
        "planes",
        "worker_engine.breach -> gateway.settings",
    ),
    ("contracts/breach.py", "import orjson", "contracts", "contracts.breach -> orjson"),
    (
        "gateway/http/breach.py",
        "import gateway.errors",
        "gateway-rooms",
        "gateway.http.breach -> gateway.errors",
    ),
    ("gateway/breach.py", "import torch", "gateway", "gateway.breach -> torch"),
    ("gateway/breach.py", "from django.db import models", "gateway", "gateway.breach -> django"),
    ("gateway/breach.py", "import worker_engine.engine", "planes", "gateway.breach -> worker_engine.engine"),
    (
        "controlplane/adapters/breach.py",
        "import gateway.routing",
        "planes",
        "controlplane.adapters.breach -> gateway.routing",
    ),
    (
        "controlplane/adapters/breach.py",
        "import worker_engine.engine",
        "planes",
        "controlplane.adapters.breach -> worker_engine.engine",
    ),
    (
        "controlplane/adapters/breach.py",
        "import torch",
        "controlplane",
        "controlplane.adapters.breach -> torch",
    ),
    ("kernels/lora/breach.py", "import demo.valkey", "planes", "kernels.lora.breach -> demo.valkey"),
    ("demo/breach.py", "import benchmarks.figure", "planes", "demo.breach -> benchmarks.figure"),
    (
        "sagemaker_local/breach.py",
        "import gateway.http.aws.sigv4",
        "sagemaker_local",
        "sagemaker_local.breach -> gateway.http.aws.sigv4",
    ),
    (
        "controlplane/tenants/breach.py",
        "import controlplane.billing.models",
        "apps",
        "controlplane.tenants.breach -> controlplane.billing.models",
    ),
    ("controlplane/newroom/__init__.py", "", "apps", "- controlplane.newroom"),
    (
        "controlplane/tenants/selectors.py",
        "import controlplane.tenants.services",
        "inside-an-app",
        "controlplane.tenants.selectors -> controlplane.tenants.services",
    ),
]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    command: list[str | Path] = [program, "--no-cache", "--config", root / "pyproject.toml"]
    # Wide enough for each contract's name on one line.
    return subprocess.run(
        command, cwd=root, env=os.environ | {"COLUMNS": "300"}, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree on its own, so that a breach can be written into it."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", root)
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__", "*.safetensors", "results")
        shutil.copytree(ROOT / package, root / package, ignore=ignore)
    return root


def test_the_tree_keeps_every_contract(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def report(copy: Path) -> dict[str, str]:
    """The linter's report on a tree with all breaches: each broken contract's name -> its part."""
    for file, line, *_ in BREACHES:
        path = copy / file
        path.parent.mkdir(exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + f"\n{line}\n")
    result = lint(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    # Each contract's part begins with its name, underlined.
    parts = re.split(r"^(.+)\n-+$", result.stdout.partition("Broken contracts\n")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(("file", "line", "contract", "said"), BREACHES)
def test_a_breach_is_caught(report: dict[str, str], file: str, line: str, contract: str, said: str) -> None:
    name = next(entry["name"] for entry in CONFIG["contracts"] if entry["id"] == contract)
    assert said in report[name]


def test_every_package_is_under_contract() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages == set(PACKAGES)


@pytest.mark.parametrize("path", sorted((ROOT / "contracts").rglob("*.py")), ids=lambda path: path.stem)
def test_contracts_need_only_the_standard_library(path: Path) -> None:
    """And google-re2, and OpenTelemetry in the functions that start traces."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "relative imports hide where a name comes from"
            imported.add(node.module.partition(".")[0])
    assert imported <= {*sys.stdlib_module_names, "contracts", "re2", "opentelemetry"}


@pytest.mark.costly("imports a whole plane in a new process")
@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("gateway.app", ("django", "torch", "triton", "celery", "boto3", "botocore")),
        ("controlplane.asgi", ("torch", "triton", "transformers", "aiohttp")),
        ("worker_engine.server", ("django", "celery", "redis", "transformers", "peft")),
    ],
)
def test_a_process_loads_only_its_own_plane(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"

"""The architecture is a test: each import contract of pyproject.toml holds, and catches a breach."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
PACKAGES: list[str] = CONFIG["root_packages"]

# (file that breaks the rule, the line it gains, id of the contract that must catch it)
BREACHES = [
    ("kernels/lora/breach.py", "import worker_engine.config", "kernels"),
    ("worker_engine/breach.py", "import django", "worker"),
    ("worker_engine/breach.py", "import gateway.wire", "worker"),
    ("gateway/breach.py", "import torch", "gateway"),
    ("gateway/breach.py", "from django.db import models", "gateway"),
    ("gateway/breach.py", "import worker_engine.engine", "gateway"),
    ("controlplane/adapters/breach.py", "import gateway.routing", "controlplane"),
    ("controlplane/adapters/breach.py", "import worker_engine.engine", "controlplane"),
    ("controlplane/adapters/breach.py", "import torch", "controlplane"),
    ("kernels/lora/breach.py", "import demo.valkey", "planes"),
    ("demo/breach.py", "import benchmarks.figure", "planes"),
    ("sagemaker_local/breach.py", "import gateway.aws.sigv4", "sagemaker_local"),
    ("controlplane/tenants/breach.py", "import controlplane.billing.models", "apps"),
    ("controlplane/newroom/__init__.py", "", "apps"),
    ("controlplane/tenants/selectors.py", "import controlplane.tenants.services", "inside-an-app"),
]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache", "--config", root / "pyproject.toml"], cwd=root, capture_output=True, text=True
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


@pytest.mark.parametrize(("file", "line", "contract"), BREACHES)
def test_a_breach_is_caught(copy: Path, file: str, line: str, contract: str) -> None:
    path = copy / file
    before = path.read_text() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_text((before or "") + f"\n{line}\n")
    try:
        result = lint(copy)
    finally:
        if before is not None:
            path.write_text(before)
        elif path.name == "__init__.py":
            shutil.rmtree(path.parent)
        else:
            path.unlink()
    name = next(entry["name"] for entry in CONFIG["contracts"] if entry["id"] == contract)
    broken = " ".join(result.stdout.split())
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{name} BROKEN" in broken


def test_every_package_is_under_contract() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages == set(PACKAGES)


SHARED = (
    "gateway.wire",
    "gateway.usage_event",
    "gateway.wire_limits",
    "gateway.wire_keys",
    "gateway.wire_bases",
    "gateway.wire_presence",
    "gateway.addresses",
    "worker_engine.protocol",
    *(f"worker_engine.adapters.{name}" for name in ("config", "pattern", "targets", "tensors")),
)
"""What another plane imports of a plane."""


@pytest.mark.parametrize("module", SHARED)
def test_wire_modules_need_only_the_standard_library(module: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "relative imports hide where a name comes from"
            if node.module not in SHARED:
                imported.add(node.module.partition(".")[0])
    assert imported <= set(sys.stdlib_module_names)


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

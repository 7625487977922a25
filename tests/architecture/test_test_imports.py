"""Only tests/parity imports transformers and PEFT, and only when a test runs: that costs ten CPU seconds.

Every test process loads every test module.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PARITY = TESTS / "parity"
ROOT = TESTS.parent
COSTLY = frozenset({"transformers", "peft"})
FIRST_PARTY = frozenset(
    {
        "benchmarks",
        "contracts",
        "controlplane",
        "demo",
        "gateway",
        "kernels",
        "optimizer",
        "sagemaker_local",
        "tests",
        "worker_engine",
    }
)
IMPORT = re.compile(r"^(?:import ([^\n]+)|from ([\w.]+) import (\([^)]*\)|[^\n]+))", re.MULTILINE)


def named_modules(node: ast.AST) -> list[str]:
    """Modules that one node of a syntax tree imports, also by pytest.importorskip and import_module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function in ("importorskip", "import_module", "__import__"):
            return [str(node.args[0].value)]
    return []


def loaded_modules(path: Path) -> list[str]:
    """Modules that a file imports when it is imported itself: its statements without indentation.

    By a regular expression, since parsing every module of the repository takes seconds.
    """
    found = []
    for plain, package, names in IMPORT.findall(path.read_text(encoding="utf-8")):
        members = [each.split(" as ")[0].strip() for each in re.sub(r"#.*|[()]", "", names).split(",")]
        found += [each.split(" as ")[0].strip() for each in plain.split(",")] if plain else [package]
        found += [f"{package}.{each}" for each in members if each]
    return found


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def is_costly(module: str) -> bool:
    return module.partition(".")[0] in COSTLY


def file_of(module: str) -> Path | None:
    """The source file of a module of this repository, or None."""
    if module.partition(".")[0] not in FIRST_PARTY:
        return None
    base = ROOT.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def test_parity_imports_them_at_their_first_use() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in sorted(PARITY.rglob("*.py"))
        if any(map(is_costly, loaded_modules(path)))
    ]
    assert not found, f"use tests/parity/references.py: {found}"


def files_outside_parity() -> list[Path]:
    return [path for path in sorted(TESTS.rglob("*.py")) if PARITY not in path.parents]


def test_no_test_outside_parity_imports_them() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for path in files_outside_parity()
        if any(name in path.read_text(encoding="utf-8") for name in COSTLY)
        for node in ast.walk(parsed(path))
        if any(map(is_costly, named_modules(node)))
    ]
    assert not found, f"move these tests to tests/parity: {found}"


def chain(module: str, seen: dict[str, list[str] | None]) -> list[str] | None:
    """The modules by whose import `module` loads transformers or PEFT, or None."""
    if is_costly(module):
        return [module]
    path = file_of(module)
    if module in seen or path is None:
        return seen.get(module)
    seen[module] = None
    for other in loaded_modules(path):
        if further := chain(other, seen):
            seen[module] = [module, *further]
            return seen[module]
    return None


def test_no_module_that_a_test_loads_imports_them() -> None:
    seen: dict[str, list[str] | None] = {}
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files_outside_parity()]
    found = [" -> ".join(loaded) for module in modules if (loaded := chain(module, seen))]
    assert not found, f"import inside of a function, or move the test to tests/parity: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "import transformers",
        "from peft import LoraConfig",
        "def f():\n    from transformers.models import llama",
        "pytest.importorskip('transformers.models.llama')",
        "importlib.import_module('peft')",
    ],
)
def test_every_form_of_import_is_found(source: str) -> None:
    assert any(is_costly(name) for node in ast.walk(ast.parse(source)) for name in named_modules(node))


def test_an_import_through_another_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "first.py").write_text("from tests.second import helper\n")
    (tmp_path / "tests" / "second.py").write_text("import os\nfrom peft import PeftModel\n")
    assert chain("tests.first", {}) == ["tests.first", "tests.second", "peft"]

"""Figures about the source tree: `python -m tests.architecture.house [TREE]`.

Prints sizes of the production code and of the documents, the rooms on each plane's ground floor, imports
between planes, and cycles among packages. Run it on two checkouts to compare them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PLANES: Final = (
    "contracts",
    "gateway",
    "controlplane",
    "worker_engine",
    "optimizer",
    "kernels",
    "sagemaker_local",
    "demo",
)
SHARED: Final = frozenset({"contracts", "kernels"})
"""Packages that planes may import."""


@dataclass
class Plane:
    """Sizes of one plane's Python code."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    rooms: set[str] = field(default_factory=set)
    """Modules and packages on the ground floor."""


@dataclass
class Imports:
    """Imports among our own modules, by name; those for type checkers alone are left out.

    Attributes:
        modules: the modules that each module imports.
        between_planes: (importing plane, imported plane) -> count; imports of SHARED are left out.
    """

    modules: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    between_planes: Counter[tuple[str, str]] = field(default_factory=Counter)


def tracked(tree: Path, *patterns: str) -> list[Path]:
    """Return the tracked files that match, relative to the tree."""
    output = subprocess.check_output(["git", "ls-files", *patterns], cwd=tree, text=True)
    return [Path(line) for line in output.splitlines()]


def imported_modules(module: ast.Module, names: Container[str]) -> Iterator[str]:
    """Yield what import statements name: for `from a import b`, `a.b` if that is a module, else `a`."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in names else node.module for name in inner)
        elif isinstance(node, ast.stmt | ast.Module | ast.ExceptHandler | ast.match_case):
            waiting += ast.iter_child_nodes(node)


def read_tree(tree: Path) -> tuple[Mapping[str, Plane], Imports]:
    """Read the production code; migrations count as lines, not as functions."""
    planes: dict[str, Plane] = {name: Plane() for name in PLANES if (tree / name).is_dir()}
    sources = {
        path: (tree / path).read_text() for path in tracked(tree, *(f"{name}/*.py" for name in planes))
    }
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in sources}
    imports = Imports()
    for name, path in names.items():
        plane = planes[path.parts[0]]
        parsed = ast.parse(sources[path])
        plane.files += 1
        plane.lines += sources[path].count("\n")
        plane.functions += sum(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(parsed)
        )
        if path.stem not in ("__init__", "__main__") or len(path.parts) > 2:
            plane.rooms.add(path.parts[1].removesuffix(".py"))
        for target in set(imported_modules(parsed, names)):
            if target not in names:
                continue
            imports.modules[name].add(target)
            here, there = path.parts[0], target.partition(".")[0]
            if here != there and there not in SHARED:
                imports.between_planes[here, there] += 1
    return planes, imports


def package_of(module: str, depth: int) -> str:
    """Return the first `depth` parts of a module's name."""
    return ".".join(module.split(".")[:depth])


def cycles(imports: Imports, depth: int) -> list[list[str]]:
    """Return the strongly connected groups of packages at `depth`, each with more than one member."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, targets in imports.modules.items():
        here = package_of(module, depth)
        graph[here] |= {package_of(target, depth) for target in targets} - {here}
    reached = {node: _reachable(graph, node) for node in list(graph)}
    groups = {
        tuple(sorted({node} | {other for other in nodes if node in reached.get(other, ())}))
        for node, nodes in reached.items()
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def main() -> None:
    tree = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    planes, imports = read_tree(tree)
    for name, plane in planes.items():
        print(
            f"{name}: {plane.files} files, {plane.lines} lines, {plane.functions} functions, "
            f"{len(plane.rooms)} rooms on the ground floor"
        )
    print(f"production code: {sum(plane.lines for plane in planes.values())} lines")
    print(f"tests: {_lines(tree, 'tests/*.py')} lines; docs: {_lines(tree, 'docs/*.md')} lines")
    print(f"migrations: {len(tracked(tree, '*/migrations/0*.py'))}")
    print(f"imports between planes: {sum(imports.between_planes.values())} {dict(imports.between_planes)}")
    for depth in (2, 3):
        found = cycles(imports, depth)
        print(f"cycles among packages at depth {depth}: {len(found)}")
        for group in found:
            print(f"  {', '.join(group)}")


def _lines(tree: Path, pattern: str) -> int:
    return sum((tree / path).read_text().count("\n") for path in tracked(tree, pattern))


if __name__ == "__main__":
    main()

"""Write docs/documents.md from docs/documents.toml: `python -m tests.document_table`."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[1]
STATEMENTS: Final = ROOT / "docs" / "documents.toml"
PATH: Final = ROOT / "docs" / "documents.md"
STATES: Final = ("done", "partly", "not measured", "not built")
_HEAD: Final = """# The documents that Graftwork implements

Graftwork implements the features described in five AWS documents on serving many LoRA adapters. Each row is a
statement of a document, where the product implements it, and the tests that show it.

- **done**: the product does it, and the tests fail if it stops doing so.
- **partly**: the note in italics says what is missing.
- **not measured**: a performance figure for a GPU that we have not tested yet; [gpu-report.md](gpu-report.md)
  has the row.
- **not built**: the note in italics says what to use instead.

`python -m tests.document_table` writes this page from [documents.toml](documents.toml). A test fails if a
file or test that the page names no longer exists.
"""
_COLUMNS: Final = "| statement | state | where | tests |\n|---|---|---|---|\n"


class Statement(msgspec.Struct, forbid_unknown_fields=True):
    """What a document says, where the product does it, and the tests that show it.

    `passage` is a few words of the document. `where` has files and folders relative to the project's root;
    `tests` has test files relative to `tests/`, each alone or with `::` and the name of a test. `note` says
    what is missing.
    """

    passage: str
    says: str
    state: str
    where: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    note: str = ""


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A document by its number, with its statements in the document's order."""

    number: str
    title: str
    source: str
    statement: tuple[Statement, ...]


@cache
def documents() -> tuple[Document, ...]:
    """Return the documents of docs/documents.toml.

    Raises:
        msgspec.ValidationError: the file is malformed.
    """
    table = tomllib.loads(STATEMENTS.read_text(encoding="utf-8"))
    return msgspec.convert(table["document"], tuple[Document, ...])


def missing(statement: Statement) -> Iterator[str]:
    """Yield the files, folders and tests that a statement names and the tree does not have."""
    yield from (place for place in statement.where if not (ROOT / place).exists())
    for test in statement.tests:
        file, _, name = test.partition("::")
        if name not in _tests_of(ROOT / "tests" / file):
            yield test


@cache
def _tests_of(path: Path) -> frozenset[str]:
    """Return the names of a file's tests, and "" for the file itself; nothing if there is no such file."""
    if not path.is_file():
        return frozenset()
    names = {""}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            names.add(node.name)
    return frozenset(names)


def render() -> str:
    """Return the page's text."""
    parts = [_HEAD, _summary()]
    for document in documents():
        parts.append(f"\n## {document.title}\n\n{document.source}.\n\n{_COLUMNS}")
        parts.extend(map(_row, document.statement))
    return "".join(parts)


def _summary() -> str:
    """Return a table of how many statements of each document are in each state."""
    lines = ["\n| document | " + " | ".join(STATES) + " |", "|---|" + "---|" * len(STATES)]
    for document in documents():
        counts = [sum(statement.state == state for statement in document.statement) for state in STATES]
        lines.append(f"| {document.title} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines) + "\n"


def _row(statement: Statement) -> str:
    """Return a statement's line of the table."""
    says = f"{statement.says} *{statement.note}*" if statement.note else statement.says
    where = ", ".join(f"[{place}](../{place})" for place in statement.where)
    tests = ", ".join(_link(test) for test in statement.tests)
    return f"| {says} | {statement.state} | {where} | {tests} |\n"


def _link(test: str) -> str:
    """Return a link to a test's file, with the test's name as its text."""
    file, _, name = test.partition("::")
    return f"[{name or Path(file).stem}](../tests/{file})"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")

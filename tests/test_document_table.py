"""docs/documents.md names files and tests that exist, and statements that the documents make."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.document_table import PATH, ROOT, STATES, Document, documents, missing, render

SEEDS: Final = ROOT.parent / "shared" / "seeds"


def test_the_page_is_written_from_the_statements() -> None:
    assert PATH.read_text(encoding="utf-8") == render(), "run python -m tests.document_table"


@pytest.mark.parametrize("document", documents(), ids=lambda document: document.number)
def test_every_file_and_test_exists(document: Document) -> None:
    assert [name for statement in document.statement for name in missing(statement)] == []


@pytest.mark.parametrize("document", documents(), ids=lambda document: document.number)
def test_what_is_done_has_a_test_and_what_is_not_says_what_is_missing(document: Document) -> None:
    for statement in document.statement:
        assert statement.state in STATES, statement.says
        if statement.state in ("done", "not measured"):
            assert statement.where, statement.says
            assert statement.tests, statement.says
        else:
            assert statement.note, statement.says


@pytest.mark.parametrize("document", documents(), ids=lambda document: document.number)
def test_each_passage_is_in_the_document(document: Document) -> None:
    if not SEEDS.is_dir():
        pytest.skip("the documents are not on this machine")
    text = _one_line(next(SEEDS.glob(f"{document.number}_*.txt")))
    assert [statement.passage for statement in document.statement if statement.passage not in text] == []


def _one_line(path: Path) -> str:
    """Return a file's text with every run of white space as one space."""
    return " ".join(path.read_text(encoding="utf-8").split())

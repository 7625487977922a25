"""Files, functions and links that the documents name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])
CODE = re.compile(r"`(\w+/[\w/]+\.py)(?::(\w+))?`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_code_exists(document: Path) -> None:
    missing = []
    for file, name in CODE.findall(document.read_text()):
        path = ROOT / file
        if not path.exists() or (name and not re.search(rf"(def|class) {name}\b", path.read_text())):
            missing.append(f"{file}:{name}")
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = LINK.findall(document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_a_decision_has_a_number_of_its_own() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs" / "adr").glob("0*.md")]
    assert numbers
    assert len(set(numbers)) == len(numbers)

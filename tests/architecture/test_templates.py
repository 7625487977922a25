"""Templates: nothing inline that the content policy refuses, and every text can be translated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

TEMPLATES = ROOT / "templates"
DOCUMENTS = {
    "500.html": "rendered without Django's machinery: it must not fail too",
    "billing/credit_note.html": "a document, in the language of its law",
    "billing/invoice.html": "a document, in the language of its law",
    "billing/parties.html": "a document, in the language of its law",
}
"""Templates that stand apart from the pages -> why."""
NAMES = {"Hugging Face", "Top P"}
"""What is called so in every language."""
PAGES = sorted(
    path
    for path in TEMPLATES.rglob("*.html")
    if str(path.relative_to(TEMPLATES)) not in DOCUMENTS
)  # fmt: skip

_TRANSLATED = re.compile(r"{%\s*blocktrans(?:late)?\b.*?{%\s*endblocktrans(?:late)?\s*%}", re.DOTALL)
_SILENT = re.compile(r"{#.*?#}|<!--.*?-->|<(svg|code|script)\b.*?</\1>", re.DOTALL)
_CODE = re.compile(r"{%.*?%}|{{.*?}}", re.DOTALL)
_SENTENCE = re.compile(r"(?<![\w.])[A-Za-z]{2,} [A-Za-z]{2,}")
_LOGOUT = """method="post" action="{% url 'console:logout' %}\""""
_SPOKEN = re.compile(r'\b(?:aria-label|title|placeholder|alt)="([^"]*)"')


def untranslated(text: str) -> list[str]:
    """Texts of two words and more that stand outside of `{% translate %}` and `{% blocktranslate %}`."""
    text = _CODE.sub("\0", _SILENT.sub("", _TRANSLATED.sub("", text)))
    texts = [*_SPOKEN.findall(text), *re.split(r"[\n\0]", re.sub(r"<[^>]*>", "\n", text))]
    return [said.strip() for said in texts if said.strip() not in NAMES and _SENTENCE.search(said)]


def inline(text: str) -> list[str]:
    """Handlers, styles and scripts that stand in the page without the policy's nonce."""
    text = _CODE.sub("\0", text.replace('nonce="{{ csp_nonce }}"', "nonce"))
    tags = re.findall(r"<[a-zA-Z][^>]*>", text)
    told = [
        tag for tag in tags if re.search(r"\son[a-z]+\s*=|\sstyle\s*=|=\s*[\"']?javascript:|^<style\b", tag)
    ]
    return told + [tag for tag in tags if tag.startswith("<script") and "nonce" not in tag]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(TEMPLATES)))
def test_a_template_is_ready_for_translation_and_policy(path: Path) -> None:
    text = path.read_text()
    assert untranslated(text) == [], "wrap it: {% translate %}, or {% blocktranslate %} where it holds values"
    assert inline(text) == []
    for tag in re.findall(r'<form\b[^>]*method="post"[^>]*>', _CODE.sub("\0", text.replace(_LOGOUT, ""))):
        assert "data-once" in tag or "hx-post" in tag, f"a double click sends it twice: {tag}"
    for tag in re.findall(r"<html\b[^>]*>", text):
        assert 'lang="{{ language }}"' in tag


def test_the_rules_find_what_they_forbid() -> None:
    assert untranslated('<p>Hello there {{ name }}</p><a title="Go on">{% translate "Hello you" %}</a>') == [
        "Go on",
        "Hello there",
    ]
    for tag in (
        '<a onclick="x()">',
        '<p style="color: red">',
        "<style>",
        "<script>",
        '<a href="javascript:x">',
    ):
        assert inline(tag) == [tag]
    assert inline('<script src="x" nonce="{{ csp_nonce }}"></script>') == []

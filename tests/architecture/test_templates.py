"""Templates: nothing inline that the content policy refuses; every text, also of mails, can be translated."""

from __future__ import annotations

import html
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
NAMES = {
    "Hugging Face",
    "Top P",
    "Graftwork",
    "SageMaker",
    "Amazon SageMaker",
    "LangChain",
    "curl",
    "openai",
    "auto",
    "required",
    "none",
}
"""What is called so in every language: names, and values of OpenAI's API."""
PAGES = sorted(
    path for path in TEMPLATES.rglob("*.html") if str(path.relative_to(TEMPLATES)) not in DOCUMENTS
)
MAILS = sorted(TEMPLATES.rglob("*.txt"))
"""An e-mail's subject and its body each."""

_TRANSLATED = re.compile(r"{%\s*blocktrans(?:late)?\b.*?{%\s*endblocktrans(?:late)?\s*%}", re.DOTALL)
_SILENT = re.compile(r"{#.*?#}|<!--.*?-->|<(svg|code|script)\b.*?</\1>", re.DOTALL)
_CODE = re.compile(r"{%.*?%}|{{.*?}}", re.DOTALL)
_WORD = re.compile(r"[A-Za-z][a-z]{3,}")
_SENTENCE = re.compile(r"(?<![\w.])[A-Za-z]{2,} [A-Za-z]{2,}")
_LOGOUT = """method="post" action="{% url 'console:logout' %}\""""
_SPOKEN = re.compile(r'\b(?:aria-label|title|placeholder|alt)="([^"]*)"')


def untranslated(text: str) -> list[str]:
    """Return texts outside of `{% translate %}` and `{% blocktranslate %}`. One word in an attribute is
    allowed, since it may be an example value; in visible text every word counts."""
    text = _CODE.sub("\0", _SILENT.sub("", _TRANSLATED.sub("", text)))
    read = re.split(r"[\n\0]", html.unescape(re.sub(r"<[^>]*>", "\n", text)))
    texts = [said.strip() for said in [*_SPOKEN.findall(text), *read]]
    found = [said for said in texts if said not in NAMES and _SENTENCE.search(said)]
    left = [said for said in read if said.strip() not in {*found, *NAMES}]
    words = [word.strip(".,:;()·…") for said in left for word in said.split()]
    return found + [word for word in words if _WORD.fullmatch(word) and word not in NAMES]


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


@pytest.mark.parametrize("path", MAILS, ids=lambda path: str(path.relative_to(TEMPLATES)))
def test_a_mail_is_ready_for_translation(path: Path) -> None:
    assert unmarked_words(path.read_text()) == []
    subject = path.name.endswith("_subject.txt")
    other = path.name.replace("_subject", "") if subject else path.name.replace(".txt", "_subject.txt")
    assert path.with_name(other) in MAILS


def unmarked_words(mail: str) -> list[str]:
    """Return the words of a mail that `makemessages` does not extract."""
    return re.findall(r"\w{2,}", _CODE.sub(" ", _TRANSLATED.sub(" ", mail)))


def test_the_rules_find_what_they_forbid() -> None:
    assert unmarked_words('{% translate "Go on" %}: {{ url }} {% if x %}UTC{% endif %}') == ["UTC"]
    assert len(MAILS) >= 10
    assert untranslated('<p>Hello there {{ name }}</p><a title="Go on">{% translate "Hello you" %}</a>') == [
        "Go on",
        "Hello there",
    ]
    assert untranslated("<dt>Quantity:</dt><dd>{{ n }} README.md UTC</dd>") == ["Quantity"]
    for tag in (
        '<a onclick="x()">',
        '<p style="color: red">',
        "<style>",
        "<script>",
        '<a href="javascript:x">',
    ):
        assert inline(tag) == [tag]
    assert inline('<script src="x" nonce="{{ csp_nonce }}"></script>') == []

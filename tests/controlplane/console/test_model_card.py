"""A model card on the adapter's page: markdown, of which no markup of its writer's becomes the page's."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from controlplane.adapters.card_html import card_html
from controlplane.adapters.models import AdapterVersion
from tests.controlplane.console.conftest import HOSTILE, Team

CARD = """---
license: apache-2.0
tags: [lora]
---
# Support bot

Answers **briefly**, see [the run](https://runs.test/1).

| metric | value |
|:--|--:|
| loss | 1.5 |
"""


def test_a_card_is_markdown_without_its_front_matter() -> None:
    html = card_html(CARD)
    assert "license" not in html
    assert "<h3>Support bot</h3>" in html
    assert "<strong>briefly</strong>" in html
    assert (
        '<a href="https://runs.test/1" rel="noopener noreferrer nofollow" target="_blank">the run</a>' in html
    )
    assert "<td>1.5</td>" in html


@pytest.mark.costly("a hostile model card")
def test_tables_that_leave_cells_out_do_not_grow_without_bound() -> None:
    table = "|" + "a|" * 256 + "\n|" + "-|" * 256 + "\n" + "x\n" * 256 + "\n"
    assert len(card_html(table * 65)) < 1_000_000
    assert "<td></td>" in card_html("|a|b|\n|-|-|\n|1|\n|2|\n"), "a short row is a row"


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[a](javascript:alert(1))",
        "[a](JaVaScRiPt:alert(1))",
        "[a](data:text/html,<script>alert(1)</script>)",
        "[a](//elsewhere.test/x)",
        "[a](/t/acme/keys/)",
        "![a](https://elsewhere.test/x.png)",
        '<https://x.test/"onmouseover=alert(1)>',
        "[a](https://x.test/ 'x\" onmouseover=\"alert(1)')",
        '```"><script>alert(1)</script>\n```',
        "# <svg/onload=alert(1)>",
        "|<b onclick=alert(1)>|\n|--:|\n|<i>|",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        HOSTILE,
    ],
)
def test_hostile_cards_have_no_tags_of_their_own(text: str) -> None:
    html = card_html(text)
    allowed = {"p", "a", "code", "pre", "h3", "table", "thead", "tbody", "tr", "th", "td", "em", "strong"}
    assert set(re.findall(r"</?([a-zA-Z0-9]+)", html)) <= allowed
    for tag in re.findall(r"<[^>]*>", html):
        attributes = re.sub(r'="[^"]*"', "", tag).split()[1:]
        assert {a.rstrip(">") for a in attributes} <= {"href", "rel", "target", "title", "class", ""}
    for href in re.findall(r'href="([^"]*)"', html):
        assert href.startswith(("https://x.test/", "https://elsewhere.test/"))


def test_the_newest_ready_versions_card_stands_on_the_page(client: Client, acme: Team) -> None:
    client.force_login(acme.user)
    url = reverse("console:adapter", args=("acme", "support-bot"))
    assert 'data-testid="card"' not in client.get(url).content.decode()
    versions = AdapterVersion.objects.filter(adapter__name="support-bot")
    text = f"{CARD}\n\n{HOSTILE}"
    versions.update(card=text, card_html=card_html(text))
    page = client.get(url).content.decode()
    assert "<h3>Support bot</h3>" in page
    assert "<script>alert" not in page


def test_a_card_that_could_not_be_rendered_stands_there_as_text(client: Client, acme: Team) -> None:
    client.force_login(acme.user)
    AdapterVersion.objects.filter(adapter__name="support-bot").update(card="# Bot <b>bold</b>", card_html="")
    page = client.get(reverse("console:adapter", args=("acme", "support-bot"))).content.decode()
    assert "<pre># Bot &lt;b&gt;bold&lt;/b&gt;</pre>" in page


def test_deep_nesting_ends() -> None:
    assert len(card_html(">" * 50_000 + "x")) < 100_000
    assert len(card_html("[" * 20_000)) < 100_000

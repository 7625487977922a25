"""A name written from right to left, or with an order to turn what follows, stays within its own place."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from pytest_django import Settings

from controlplane.console.direction import DirectionMiddleware
from controlplane.tenants.models import ApiKey, Project, Tenant
from controlplane.tenants.roles import Role
from tests.controlplane.world import OWN, World
from tests.ui.filled import world_fill
from tests.ui.pages import STAFF_PAGES, TENANT_PAGES, opening

ORDERS = "".join(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))
SHALOM = "\u05e9\u05dc\u05d5\u05dd"
# An order that never ends, one that ends an isolation around it, and letters that go from right to left.
NAME = f"\u202e\u2069\u202eturned {SHALOM}"
WHOLE = {"bdi", "option", "textarea", "title", "code", "pre", "script"}
"""Elements that keep a direction to themselves, by themselves or because they hold nothing else."""
VOID = {"meta", "link", "input", "br", "img", "use", "path", "rect", "line", "hr", "circle"}


class Texts(HTMLParser):
    """Collects texts with the letters of `NAME` that may turn others round: those outside of an isolation."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, bool]] = []
        self.loose: list[str] = []
        self.seen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            given = dict(attrs)
            isolates = tag in WHOLE or "name" in (given.get("class") or "").split()
            self.open.append((tag, isolates))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if SHALOM not in data:
            return
        self.seen += 1
        if not any(isolates for _, isolates in self.open):
            self.loose.append(f"<{self.open[-1][0]}> {data.strip()[:120]}")


@pytest.fixture
def world(graftwork: Path, settings: Settings, tmp_path: Path, db: None) -> World:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, sign_up="open")
    world = world_fill(tmp_path)
    Tenant.objects.filter(pk=OWN).update(name=NAME)
    ApiKey.objects.filter(tenant=OWN).update(name=NAME)
    Project.objects.filter(tenant=OWN).update(name=NAME)
    return world


def loose(page: str) -> tuple[list[str], int]:
    texts = Texts()
    texts.feed(page)
    return texts.loose, texts.seen


@pytest.mark.costly("renders every page")
def test_no_page_lets_a_name_turn_what_is_beside_it(world: World) -> None:
    faults, seen = [], 0
    for name in (*TENANT_PAGES, *STAFF_PAGES):
        page = opening(world, name)
        assert page.client is not None
        text = page.client.get(page.path).content.decode()
        faults += [f"{name}: an order is sent" for order in ORDERS if order in text]
        found, count = loose(text)
        faults += [f"{name}: {told}" for told in found]
        seen += count
    assert faults == [], "show it in <bdi>, or in an element of class name"
    assert seen > len(TENANT_PAGES), "the tenant's name alone is on each of its pages"


def test_a_page_that_refuses_isolates_the_tenants_name_too(world: World) -> None:
    viewer: Client = world.people[OWN, Role.VIEWER]
    answer = viewer.get(f"/t/{OWN}/billing/")
    assert answer.status_code == 403
    text = answer.content.decode()
    assert re.search(f"Your role in <bdi>[^<]*{SHALOM}</bdi> is", text)
    assert loose(text)[0] == []


@pytest.mark.parametrize(
    ("kind", "file", "kept"),
    [
        ("text/html; charset=utf-8", False, False),
        ("application/json", False, True),
        ("text/html", True, True),
    ],
)
def test_orders_go_from_pages_alone(kind: str, file: bool, kept: bool) -> None:
    sent = f"<p>{ORDERS}a – ‘b’ …{SHALOM}\u200f</p>"
    response = HttpResponse(sent, content_type=kind)
    if file:
        response["Content-Disposition"] = "attachment"
    answer = DirectionMiddleware(lambda request: response)(HttpRequest())
    assert isinstance(answer, HttpResponse)
    assert answer.content.decode() == (sent if kept else f"<p>a – ‘b’ …{SHALOM}\u200f</p>")


def test_the_walk_finds_what_is_loose() -> None:
    for tag in ('<p class="name">', "<bdi>", '<div class="name"><p>'):
        assert loose(f"{tag}{SHALOM}") == ([], 1)
    for tag in ("<p>", '<p class="names">', "<bdi></bdi>", '<a class="name"></a><b>', "<br><p>"):
        assert len(loose(f"<body>{tag}{SHALOM}")[0]) == 1, tag

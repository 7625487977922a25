"""The list of adapters: filters, order, pages and columns."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from controlplane.adapters.aliases import alias_move, alias_split
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import AdapterRule
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from tests.controlplane.console.conftest import HOSTILE, Team, make_adapter


@pytest.fixture
def client_of(client: Client, acme: Team) -> Client:
    client.force_login(acme.user)
    return client


def listed_names(client: Client, **query: str) -> list[str]:
    page = client.get(reverse("console:adapters", args=("acme",)), query)
    assert page.status_code == 200
    return re.findall(r'<tr data-testid="adapter-([^"]+)"', page.content.decode())


def text(client: Client, **query: str) -> str:
    return client.get(reverse("console:adapters", args=("acme",)), query).content.decode()


def test_the_list_is_narrowed_by_what_an_adapter_is(
    client_of: Client, acme: Team, globex: Team, base: BaseModel
) -> None:
    make_adapter(acme, base, "waiting-one", "pending")
    Adapter.objects.filter(name="support-bot").update(labels={"team": "care", "env": "prod"})
    assert listed_names(client_of) == ["support-bot", "tone-of-voice", "waiting-one"]
    assert listed_names(client_of, status="ready") == ["support-bot"]
    assert listed_names(client_of, status="refused") == ["tone-of-voice"]
    assert listed_names(client_of, base="tiny", search="ONE") == ["tone-of-voice", "waiting-one"]
    assert listed_names(client_of, base="another") == []
    assert listed_names(client_of, label="team=care") == ["support-bot"]
    assert listed_names(client_of, label="team=care, env=prod") == ["support-bot"]
    assert listed_names(client_of, label="team=care, env=test") == []
    assert "No adapters match the filters" in text(client_of, status="validating")
    # An unknown status or order is ignored; a malformed label is reported.
    assert len(listed_names(client_of, status="nonsense", sort="nonsense")) == 3
    assert "Comma-separated key=value" in text(client_of, label="care")


def test_the_list_is_ordered_as_one_likes(client_of: Client, acme: Team, base: BaseModel) -> None:
    make_adapter(acme, base, "alpha")
    assert listed_names(client_of) == ["alpha", "support-bot", "tone-of-voice"]
    assert listed_names(client_of, sort="-name") == ["tone-of-voice", "support-bot", "alpha"]
    assert listed_names(client_of, sort="-created") == ["alpha", "tone-of-voice", "support-bot"]
    assert listed_names(client_of, sort="created") == ["support-bot", "tone-of-voice", "alpha"]


@pytest.mark.parametrize("sort", ["", "-name", "-created", "created"])
def test_pages_hold_every_adapter_once_in_any_order(
    sort: str, client_of: Client, acme: Team, base: BaseModel
) -> None:
    for number in range(118):
        make_adapter(acme, base, f"more-{number:03}")
    seen, path, cursor = list[str](), reverse("console:adapters", args=("acme",)), ""
    while True:
        page = client_of.get(path + cursor if cursor else f"{path}?sort={sort}&status=ready").content.decode()
        seen += re.findall(r'<tr data-testid="adapter-([^"]+)"', page)
        following = re.search(r'href="([^"]+)" rel="next"', page)
        if following is None:
            break
        cursor = following[1].replace("&amp;", "&")
        assert "status=ready" in cursor
    assert len(seen) == len(set(seen)) == 119


@pytest.mark.costly("a long list")
def test_a_longer_list_costs_no_more_queries(
    client_of: Client, acme: Team, base: BaseModel, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(60):
        adapter = make_adapter(acme, base, f"more-{number}")
        alias_move(adapter=adapter, name="prod", number=1)
    with django_assert_max_num_queries(20):
        assert len(listed_names(client_of)) == 50


def test_aliases_are_told_with_their_shares(client_of: Client, acme: Team) -> None:
    adapter = acme.tenant.adapters.get(name="support-bot")
    AdapterVersion.objects.create(
        adapter=adapter, number=2, status="ready", sha256="cd" * 32, uri="file:///b/", rank=16
    )
    alias_move(adapter=adapter, name="prod", number=1)
    alias_split(adapter=adapter, name="trial", arms=[(1, 90), (2, 10)])
    page = re.sub(r"<[^>]+>|&nbsp;", " ", text(client_of))
    page = re.sub(r"\s+", " ", page)
    assert "@prod v1" in page
    assert "@trial v1 90 %, v2 10 %" in page


def test_what_is_kept_in_memory_is_told(client_of: Client, acme: Team, base: BaseModel) -> None:
    assert "on demand" in text(client_of)
    version = AdapterVersion.objects.get(adapter__name="support-bot")
    target = target_create(name="here", kind="local")
    deployment = deployment_create(base_model=base, name="main", target=target)
    AdapterRule.objects.create(
        deployment=deployment, engine_name=version.engine_name, ref=version.ref().to_dict(), ready=["a", "b"]
    )
    assert "pinned on 2 copies" in text(client_of)


def test_hostile_labels_never_become_markup(client_of: Client) -> None:
    Adapter.objects.filter(name="support-bot").update(labels={HOSTILE[:60]: HOSTILE})
    page = text(client_of, label=f"a={HOSTILE}", search=HOSTILE) + text(client_of)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page

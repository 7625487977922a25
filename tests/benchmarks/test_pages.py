"""The pages' benchmark: what it fills is there, every page is opened, and the slowest of a group is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

from controlplane.metering.models import UsageEventRow, UsageRollup
from controlplane.tenants.models import ApiKey, Tenant
from tests.controlplane.conftest import graftwork as graftwork
from tests.ui.pages import STAFF_PAGES, TENANT_PAGES

pytestmark = pytest.mark.slow


@pytest.mark.django_db(transaction=True)
def test_every_page_is_opened(graftwork: Path, settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    from benchmarks.pages.fill import DAYS, fill, sessions
    from benchmarks.pages.visits import ASKED, addresses, asked_of, client_with, group_of, pages_of, parts

    names = fill(adapters=20)
    tenant = Tenant.objects.get(pk=names["tenant"])
    assert tenant.adapters.count() == 20
    assert ApiKey.objects.filter(tenant=tenant).count() == 3
    assert UsageRollup.objects.filter(tenant=tenant.pk).count() == DAYS * 2
    assert UsageEventRow.objects.filter(tenant=tenant.pk).count() == 200
    clients = {whose: client_with(session) for whose, session in sessions().items()}
    pages, refused = pages_of(clients, asked_of(addresses(names)))
    assert {*TENANT_PAGES, *STAFF_PAGES} - set(pages) == set()
    # Of no rollout, and files, which are no pages.
    assert {name.partition(" ")[0] for name in refused} <= {
        "rollout-status",
        "invoice-file",
        "credit-note-file",
    }
    assert {"home-figures", "adapter-shares", "adapter-traffic", "staff-fleet-status"} <= parts() & set(pages)
    assert set(pages) >= {f"{name}{query}" for name, queries in ASKED.items() for query in queries}
    assert pages["usage?days=90"][1] == "/t/scale/usage/?days=90"
    assert pages["adapter"][1] == "/t/scale/adapters/bot-000000/"
    assert [group_of(pages[name][1]) for name in ("home?days=1", "adapter", "staff-fleet")] == [
        "a tenant's home",
        "a tenant's adapters",
        "staff's fleet",
    ]
    assert client_with("nobody's").get(pages["home"][1]).status_code == 302
    assert isinstance(pages["staff-fleet"][0], Client)


def test_the_slowest_page_of_a_group_is_named() -> None:
    from benchmarks.pages.measuring import Visits, figures

    visits = {
        "adapters": Visits([10.0] * 19 + [170.0], [5.0] * 20, 12),
        "adapter": Visits([20.0] * 20, [9.0] * 20, 9),
        "home": Visits([30.0] * 20, [9.0] * 20, 30),
    }
    groups = {"adapters": "lists", "adapter": "lists", "home": "home"}
    home, lists, all_pages = figures(visits, groups, ["credit-note (404)"])
    assert (home.metric, home.value, home.met) == ("p95 of home", 30.0, True)
    assert lists.value > 150
    assert lists.met is False
    assert lists.note.startswith("adapters, the slowest of 2: median 10.0 ms")
    assert "12 queries" in lists.note
    assert (all_pages.value, all_pages.baseline) == (2, 3)
    assert all_pages.note == "slower: adapters; not opened: credit-note (404)"


@pytest.mark.parametrize("names", [["metering", "--pages", "keys"], ["pages", "metering", "--pages", "keys"]])
def test_pages_are_chosen_of_their_benchmark_alone(
    names: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.__main__ import main

    monkeypatch.setattr("sys.argv", ["benchmarks", *names])
    with pytest.raises(SystemExit):
        main()
    assert "benchmark" in capsys.readouterr().err

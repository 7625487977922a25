"""Data that the playground's page hands its script: models, prices, columns, texts."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from controlplane.adapters.aliases import alias_move
from controlplane.billing.services import price_book_create, price_set
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.services import copy_register
from controlplane.tenants.models import Membership
from controlplane.tenants.roles import Role
from tests.controlplane.console.conftest import HOSTILE, Team, make_adapter

DAY = dt.date(2020, 1, 1)


@pytest.fixture
def client_of(client: Client, acme: Team) -> Client:
    client.force_login(acme.user)
    return client


def setup(client: Client, **query: Any) -> dict[str, Any]:
    page = client.get(reverse("console:playground", args=("acme",)), query).content.decode()
    found = re.search(r'<script id="playground-setup" type="application/json">(.*?)</script>', page)
    assert found
    value: dict[str, Any] = json.loads(found[1])
    return value


def fetch(client: Client, name: str, **query: str) -> Any:
    return client.get(reverse(f"console:playground-{name}", args=("acme",)), query)


def test_the_first_adapter_stands_beside_its_base(client_of: Client) -> None:
    assert setup(client_of)["columns"] == ["support-bot", "tiny"]
    assert setup(client_of, model="tiny")["columns"] == ["tiny"]
    assert setup(client_of, model="support-bot@v1")["columns"] == ["support-bot@v1", "tiny"]
    many = ["tiny", "support-bot", "support-bot", "support-bot@v1", "gone", "fifth"]
    assert setup(client_of, model=many)["columns"] == ["tiny", "support-bot", "support-bot@v1", "gone"]


def test_what_the_address_names_never_becomes_markup(client_of: Client) -> None:
    hostile = f"</script>{HOSTILE}"
    assert setup(client_of, model=[hostile, "tiny"])["columns"] == [hostile[:200], "tiny"]


def test_models_are_found_by_part_of_any_of_their_names(client_of: Client, acme: Team, globex: Team) -> None:
    alias_move(adapter=acme.tenant.adapters.get(name="support-bot"), name="prod", number=1)
    calls = ["support-bot", "support-bot@prod", "support-bot@v1"]
    assert fetch(client_of, "models").json() == {"models": ["tiny", *calls]}
    assert fetch(client_of, "models", search="PORT-B").json() == {"models": calls}
    assert fetch(client_of, "models", search="bot@p").json() == {"models": ["support-bot@prod"]}
    # Neither what is refused nor what is another tenant's.
    assert fetch(client_of, "models", search="tone").json() == {"models": []}
    assert fetch(client_of, "models", search="globex").json() == {"models": []}


def test_ten_thousand_adapters_cost_no_more_queries(
    client_of: Client, acme: Team, base: BaseModel, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(60):
        make_adapter(acme, base, f"more-{number}")
    with django_assert_max_num_queries(14):
        assert len(fetch(client_of, "models").json()["models"]) == 101
    with django_assert_max_num_queries(16):
        setup(client_of)


def test_prices_are_those_in_force_for_the_tenant(client_of: Client, base: BaseModel) -> None:
    assert fetch(client_of, "prices").json() == {"currency": "USD", "units": [], "reads_images": None}
    assert fetch(client_of, "prices", model="tiny").json() == {
        "currency": "USD",
        "units": [None],
        "reads_images": False,
    }
    book = price_book_create(name="list")
    price_set(
        book=book,
        base_model="tiny",
        effective_from=DAY,
        input_nano=150,
        cached_input_nano=75,
        output_nano=600,
    )
    units = {"input": 150, "cached": 75, "output": 600, "reasoning": 600, "request": 0}
    for model in ("tiny", "support-bot", "support-bot@v1"):
        assert fetch(client_of, "prices", model=model).json()["units"] == [units]
    price_set(
        book=book,
        base_model="tiny",
        adapter="acme/support-bot",
        effective_from=DAY,
        input_nano=1,
        cached_input_nano=1,
        output_nano=2,
        reasoning_nano=7,
    )
    own = {"input": 1, "cached": 1, "output": 2, "reasoning": 7, "request": 0}
    assert fetch(client_of, "prices", model="support-bot").json()["units"] == [own]
    assert fetch(client_of, "prices", model="tiny").json()["units"] == [units]


def test_prices_by_backend_are_told_for_the_backends_that_serve(client_of: Client, base: BaseModel) -> None:
    book = price_book_create(name="list")
    for backend, nano in (("", 100), ("sagemaker", 300)):
        price_set(
            book=book,
            base_model="tiny",
            backend=backend,
            effective_from=DAY,
            input_nano=nano,
            cached_input_nano=nano,
            output_nano=nano,
        )
    copy_register(base_model=base, kind="worker", url="http://127.0.0.1:9")
    assert [unit["input"] for unit in fetch(client_of, "prices", model="tiny").json()["units"]] == [100]


@pytest.mark.parametrize("model", ["gone", "tiny@v1", "globex-secret", "globex-secret@v1", "tone-of-voice"])
def test_what_cannot_be_called_has_no_price(model: str, client_of: Client, globex: Team) -> None:
    assert fetch(client_of, "prices", model=model).status_code == 404


def test_who_may_not_call_models_gets_nothing(client_of: Client, acme: Team) -> None:
    Membership.objects.filter(user=acme.user).update(role=Role.VIEWER)
    for name in ("models", "prices"):
        assert fetch(client_of, name, model="tiny").status_code == 403

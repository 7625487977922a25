"""Splits and fallbacks of an adapter's names: refusals, and the resulting route table."""

from __future__ import annotations

import pytest
from django.test import Client

from contracts.route_table import AdapterRoute
from controlplane.adapters.aliases import alias_move, alias_split, fallback_set
from controlplane.adapters.models import Adapter, AdapterVersion, AliasArm
from controlplane.adapters.services import adapter_publish
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.routes.selectors import route_table
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, user_create

pytestmark = pytest.mark.django_db


def ready(tenant: Tenant, base_model: BaseModel, name: str = "pirate") -> Adapter:
    """An adapter with versions 1 to 3 ready and 4 refused, as validation leaves them."""
    adapter = Adapter.objects.create(tenant=tenant, name=name, base_model=base_model)
    for number, status in ((1, "ready"), (2, "ready"), (3, "ready"), (4, "refused")):
        AdapterVersion.objects.create(
            adapter=adapter, number=number, status=status, sha256=f"{number}" * 64, uri="file:///a/", rank=2
        )
    adapter_publish(adapter=adapter)
    return adapter


@pytest.fixture
def adapter(tenant: Tenant, base_model: BaseModel) -> Adapter:
    return ready(tenant, base_model)


def route(name: str = "pirate") -> AdapterRoute:
    return route_table().adapters["acme"][name]


def test_a_split_stands_in_the_route_until_the_alias_is_moved(adapter: Adapter) -> None:
    alias_split(adapter=adapter, name="prod", arms=[(1, 90), (2, 10)])
    assert (route().aliases, route().splits) == ({"prod": 1}, {"prod": ((1, 90), (2, 10))})
    alias_split(adapter=adapter, name="prod", arms=[(1, 50), (3, 30), (2, 20)])
    assert route().splits == {"prod": ((1, 50), (3, 30), (2, 20))}
    alias_split(adapter=adapter, name="other", arms=[(2, 1), (3, 99)])
    alias_move(adapter=adapter, name="prod", number=3)
    assert (route().aliases, route().splits) == ({"other": 2, "prod": 3}, {"other": ((2, 1), (3, 99))})


@pytest.mark.parametrize(
    ("arms", "error", "said"),
    [
        ([(1, 90), (2, 9)], InvalidInputError, "add up to 99"),
        ([(1, 100)], InvalidInputError, "2 to 10 arms"),
        ([], InvalidInputError, "2 to 10 arms"),
        ([(number, 9) for number in range(1, 12)], InvalidInputError, "2 to 10 arms"),
        ([(1, 50), (1, 50)], InvalidInputError, "different versions"),
        ([(1, 110), (2, -10)], InvalidInputError, "from 1"),
        ([(1, 100), (2, 0)], InvalidInputError, "from 1"),
        ([(1, 50), (4, 50)], ConflictError, "refused, not ready"),
        ([(1, 50), (9, 50)], NotFoundError, "no version 9"),
    ],
)
def test_a_split_that_cannot_be_is_refused_and_changes_nothing(
    adapter: Adapter, arms: list[tuple[int, int]], error: type[Exception], said: str
) -> None:
    alias_split(adapter=adapter, name="prod", arms=[(1, 90), (2, 10)])
    with pytest.raises(error, match=said):
        alias_split(adapter=adapter, name="prod", arms=arms)
    assert route().splits == {"prod": ((1, 90), (2, 10))}
    assert AliasArm.objects.count() == 2
    with pytest.raises(InvalidInputError, match="version number"):
        alias_split(adapter=adapter, name="v2", arms=[(1, 90), (2, 10)])


def test_fallbacks_stand_in_the_route(adapter: Adapter, tenant: Tenant, base_model: BaseModel) -> None:
    ready(tenant, base_model, "second")
    alias = alias_move(adapter=adapter, name="prod", number=2)
    models = ["pirate@v1", "second@v3", "second", "tiny-base"]
    fallback_set(adapter=adapter, alias=alias, models=models)
    fallback_set(adapter=adapter, alias=None, models=["pirate@prod"])
    assert route().fallbacks == {"": ("pirate@prod",), "prod": tuple(models)}
    # A change of an alias's versions leaves its fallbacks unchanged.
    alias_split(adapter=adapter, name="prod", arms=[(1, 90), (2, 10)])
    assert route().fallbacks["prod"] == tuple(models)
    fallback_set(adapter=adapter, alias=alias, models=[])
    fallback_set(adapter=adapter, alias=None, models=[])
    assert route().fallbacks == {}


@pytest.mark.parametrize(
    "models",
    [
        ["nothing"],
        ["pirate@v4"],
        ["pirate@v9"],
        ["pirate@staging"],
        ["pirate@prod"],
        ["theirs"],
        [""],
        ["tiny-base", "tiny-base"],
        ["tiny-base@v1"],
        ["pirate@v1", "pirate@v2", "pirate@v3", "pirate", "tiny-base"],
    ],
)
def test_a_fallback_that_cannot_be_is_refused(
    adapter: Adapter, other_tenant: Tenant, base_model: BaseModel, models: list[str]
) -> None:
    ready(other_tenant, base_model, "theirs")
    alias = alias_move(adapter=adapter, name="prod", number=2)
    with pytest.raises(InvalidInputError):
        fallback_set(adapter=adapter, alias=alias, models=models)
    assert route().fallbacks == {}


def test_rest_splits_and_falls_back(adapter: Adapter, tenant: Tenant) -> None:
    _, key = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    client, headers = Client(), {"Authorization": f"Bearer {key}"}

    def put(path: str, body: object) -> tuple[int, dict[str, object]]:
        url = f"/api/v1/adapters/pirate{path}"
        answer = client.put(url, body, headers=headers, content_type="application/json")
        return answer.status_code, answer.json()

    arms = [{"version": 1, "percent": 90}, {"version": 2, "percent": 10}]
    status, body = put("/aliases/prod", {"arms": arms})
    assert (status, body["version"], body["arms"], body["fallback"]) == (200, 1, arms, [])
    assert route().splits == {"prod": ((1, 90), (2, 10))}
    status, body = put("/aliases/prod/fallback", {"models": ["pirate@v3", "tiny-base"]})
    assert (status, body["fallback"]) == (200, ["pirate@v3", "tiny-base"])
    status, body = put("/fallback", {"models": ["tiny-base"]})
    assert (status, body["fallback"]) == (200, ["tiny-base"])
    assert route().fallbacks == {"": ("tiny-base",), "prod": ("pirate@v3", "tiny-base")}
    for wrong in ({}, {"version": 1, "arms": arms}, {"arms": arms[:1]}, {"arms": [{"version": 1}]}):
        assert put("/aliases/prod", wrong)[0] == 400, wrong
    assert put("/fallback", {"models": ["nothing"]})[0] == 400
    status, body = put("/aliases/prod", {"version": 3})
    assert (status, body["version"], body["arms"]) == (200, 3, [])


def test_the_adapters_page_shows_them(adapter: Adapter, tenant: Tenant) -> None:
    alias = alias_split(adapter=adapter, name="prod", arms=[(1, 90), (2, 10)])
    fallback_set(adapter=adapter, alias=alias, models=["pirate@v3", "tiny-base"])
    client = Client()
    client.force_login(user_create(email="a@acme.test", password="long-enough-7", tenant=tenant))
    page = client.get("/t/acme/adapters/pirate/").content.decode()
    assert "v1: 90&nbsp;%" in page
    assert "v2: 10&nbsp;%" in page
    assert "Fallback models: pirate@v3, tiny-base" in page

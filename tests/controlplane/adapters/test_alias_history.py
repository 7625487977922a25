"""Every change of an alias is recorded, and can be rolled back."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.test import Client

from controlplane.adapters.aliases import alias_move, alias_remove, alias_rollback, alias_split
from controlplane.adapters.lifecycle import version_delete
from controlplane.adapters.models import Adapter, AliasChange
from controlplane.adapters.selectors import alias_change_newest, alias_get, version_get
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError, NotFoundError
from controlplane.platform.audit.origin import Actor, Origin, acting
from controlplane.routes.models import RouteEntryRow
from controlplane.routes.selectors import route_base
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.adapters.test_races import at_once
from tests.controlplane.adapters.test_splits import ready, route

pytestmark = pytest.mark.django_db


@pytest.fixture
def adapter(tenant: Tenant, base_model: BaseModel) -> Adapter:
    return ready(tenant, base_model)


def newest(adapter: Adapter) -> AliasChange:
    change = alias_change_newest(adapter=adapter, name="prod")
    assert change is not None
    return change


def test_who_when_from_to_and_why(adapter: Adapter) -> None:
    with acting(Origin(lambda: Actor("user", "7", "a@acme.test"))):
        alias_move(adapter=adapter, name="prod", number=1, reason="first")
    with acting(Origin(lambda: Actor("key", "k1"))):
        alias_split(adapter=adapter, name="prod", arms=[(1, 90), (2, 10)])
        alias_move(adapter=adapter, name="prod", number=1)
    alias_move(adapter=adapter, name="prod", number=1, reason="the same again is no change")
    with acting(Origin(lambda: Actor("user", "8", "b@acme.test"))):
        alias_remove(alias=alias_get(adapter=adapter, name="prod"))
    one, split = {"version": 1, "arms": []}, {"version": 1, "arms": [[1, 90], [2, 10]]}
    found = list(AliasChange.objects.order_by("pk").values_list("before", "after", "by", "reason"))
    assert found == [
        (None, one, "a@acme.test", "first"),
        (one, split, "key k1", ""),
        (split, one, "key k1", ""),
        (one, None, "b@acme.test", ""),
    ]
    assert newest(adapter).created_at is not None


def test_routes_have_the_creation_times_of_adapter_and_aliases(adapter: Adapter) -> None:
    alias_move(adapter=adapter, name="prod", number=1)
    first = newest(adapter)
    AliasChange.objects.filter(pk=first.pk).update(created_at=first.created_at - timedelta(hours=1))
    alias_move(adapter=adapter, name="prod", number=2)
    alias_move(adapter=adapter, name="test", number=2)
    assert route().created == int(adapter.created_at.timestamp())
    assert route().aliases_created["prod"] == int(first.created_at.timestamp()) - 3600, (
        "not when it was moved"
    )
    assert sorted(route().aliases_created) == ["prod", "test"]
    alias_remove(alias=alias_get(adapter=adapter, name="prod"))
    assert sorted(route().aliases_created) == ["test"]
    alias_move(adapter=adapter, name="prod", number=1)
    assert route().aliases_created["prod"] == int(newest(adapter).created_at.timestamp())


def test_routes_of_an_older_release_get_their_creation_times(adapter: Adapter, base_model: BaseModel) -> None:
    alias_move(adapter=adapter, name="prod", number=1)
    expected = route()
    base = route_base(base_model=base_model.name)
    assert base is not None
    assert base.created == int(base_model.created_at.timestamp())
    for row in RouteEntryRow.objects.filter(path__regex="^(bases|adapters)/"):
        row.entry = {name: value for name, value in row.entry.items() if "created" not in name}
        row.save()
    assert route().created == 0
    call_command("republish_models", stdout=StringIO())
    assert route() == expected
    assert route_base(base_model=base_model.name) == base


def test_rollback_undoes_the_newest_change_and_is_undone_itself(adapter: Adapter) -> None:
    alias_split(adapter=adapter, name="prod", arms=[(1, 90), (2, 10)])
    alias_move(adapter=adapter, name="prod", number=2)
    alias_rollback(adapter=adapter, name="prod")
    assert (route().aliases, route().splits) == ({"prod": 1}, {"prod": ((1, 90), (2, 10))})
    assert newest(adapter).reason == "rolled back"
    alias_rollback(adapter=adapter, name="prod", reason="after all")
    assert (route().aliases, route().splits) == ({"prod": 2}, {})
    first = AliasChange.objects.order_by("pk")[0]
    alias_rollback(adapter=adapter, name="prod", to=first.pk)
    assert route().splits == {"prod": ((1, 90), (2, 10))}


def test_a_removed_alias_comes_back(adapter: Adapter) -> None:
    alias_move(adapter=adapter, name="prod", number=3)
    alias_remove(alias=alias_get(adapter=adapter, name="prod"))
    assert route().aliases == {}
    alias_rollback(adapter=adapter, name="prod")
    assert route().aliases == {"prod": 3}


def test_a_rollback_that_cannot_be_changes_nothing(adapter: Adapter) -> None:
    with pytest.raises(NotFoundError, match="never had an alias"):
        alias_rollback(adapter=adapter, name="prod")
    alias_move(adapter=adapter, name="prod", number=1)
    with pytest.raises(ConflictError, match="did not exist then"):
        alias_rollback(adapter=adapter, name="prod")
    seen = newest(adapter).pk
    alias_move(adapter=adapter, name="prod", number=2)
    with pytest.raises(ConflictError, match="changed meanwhile"):
        alias_rollback(adapter=adapter, name="prod", newest=seen)
    with pytest.raises(NotFoundError, match="no change"):
        alias_rollback(adapter=adapter, name="prod", to=10**9)
    version_delete(version=version_get(adapter=adapter, number=1))
    with pytest.raises(NotFoundError, match="no version 1"):
        alias_rollback(adapter=adapter, name="prod")
    assert route().aliases == {"prod": 2}
    assert AliasChange.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_of_two_rollbacks_that_saw_the_same_one_happens(adapter: Adapter) -> None:
    alias_move(adapter=adapter, name="prod", number=1)
    alias_move(adapter=adapter, name="prod", number=2)
    seen = newest(adapter).pk
    results = at_once([lambda: alias_rollback(adapter=adapter, name="prod", newest=seen)] * 4)
    assert len([item for item in results if isinstance(item, ConflictError)]) == 3
    assert route().aliases == {"prod": 1}
    assert AliasChange.objects.count() == 3


def test_rest_tells_the_history_and_rolls_back(adapter: Adapter, tenant: Tenant) -> None:
    key, text = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    client = Client(headers={"Authorization": f"Bearer {text}"})
    url = "/api/v1/adapters/pirate/aliases/prod"
    for number in (1, 2):
        body = {"version": number, "reason": f"to {number}"}
        assert client.put(url, body, content_type="application/json").status_code == 200
    history = client.get(f"{url}/history").json()["results"]
    assert [(item["after"]["version"], item["reason"], item["by"]) for item in history] == [
        (2, "to 2", f"gw_{key.pk}_..."),
        (1, "to 1", f"gw_{key.pk}_..."),
    ]
    stale = client.post(f"{url}/rollback", {"newest": history[1]["id"]}, content_type="application/json")
    assert stale.status_code == 409
    body = {"newest": history[0]["id"], "reason": "it swears"}
    answer = client.post(f"{url}/rollback", body, content_type="application/json")
    assert (answer.status_code, answer.json()["version"]) == (200, 1)
    assert client.get(f"{url}/history").json()["results"][0]["reason"] == "it swears"

"""Walks every REST route: nobody without right gets in, and no tenant reaches another's things."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.test import Client
from django.urls import URLPattern

from controlplane import api_urls
from controlplane.adapters.models import Adapter, AdapterVersion, Alias
from controlplane.adapters.services import adapter_publish
from controlplane.billing.services import price_book_create
from controlplane.catalog.models import BaseModel
from controlplane.deployments.services import copy_register
from controlplane.http.permissions import Nobody
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, user_create

pytestmark = pytest.mark.django_db

# Route name -> (methods, whose things it is about). A new route fails the first test until it stands here.
OWN, SHARED, STAFF = "own", "shared", "staff"
ROUTES: dict[str, tuple[tuple[str, ...], str]] = {
    "adapters": (("get", "post"), OWN),
    "adapter": (("get", "delete"), OWN),
    "adapter-pin": (("put",), OWN),
    "versions": (("get", "post"), OWN),
    "version": (("get",), OWN),
    "aliases": (("get",), OWN),
    "alias": (("get", "put", "delete"), OWN),
    "keys": (("get", "post"), OWN),
    "key": (("get", "delete"), OWN),
    "base-models": (("get", "post"), SHARED),
    "base-model": (("get",), SHARED),
    "usage": (("get",), OWN),
    "fleet-usage": (("get",), STAFF),
    "tenants": (("get", "post"), STAFF),
    "tenant": (("get",), STAFF),
    "users": (("get", "post"), STAFF),
    "copies": (("get", "post"), STAFF),
    "copy": (("get", "delete"), STAFF),
    "price-books": (("get", "post"), STAFF),
    "price-book": (("get",), STAFF),
    "prices": (("post",), STAFF),
}
CASES = [(name, method) for name, (methods, _) in ROUTES.items() for method in methods]


@dataclass(frozen=True)
class World:
    """Tenant globex owns everything that the paths name; acme's keys and people knock."""

    values: dict[str, str]
    manage: str
    inference: str
    owner_manage: str
    member: Client
    staff: Client

    def path(self, name: str) -> str:
        pattern = str(_patterns()[name].pattern)
        for key, value in self.values.items():
            pattern = pattern.replace(f"<str:{key}>", value).replace(f"<int:{key}>", value)
        if name.startswith(("base-model", "price")):
            pattern = pattern.replace("pirate", "tiny-base" if name.startswith("base") else "standard")
        return f"/api/v1/{pattern}"


def _patterns() -> dict[str, URLPattern]:
    return {str(pattern.name): pattern for pattern in api_urls.urlpatterns}


@pytest.fixture
def world(tenant: Tenant, other_tenant: Tenant, base_model: BaseModel) -> World:
    adapter = Adapter.objects.create(tenant=other_tenant, name="pirate", base_model=base_model)
    version = AdapterVersion.objects.create(
        adapter=adapter, number=1, status="ready", sha256="ab" * 32, uri="file:///a/", rank=2
    )
    Alias.objects.create(adapter=adapter, name="prod", version=version)
    adapter_publish(adapter=adapter)
    key, owner_manage = api_key_create(tenant=other_tenant, name="k", scopes=["manage"])
    _, manage = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    _, inference = api_key_create(tenant=tenant, name="i", scopes=["inference"])
    price_book_create(name="standard")
    copy = copy_register(base_model=base_model, kind="worker", url="http://127.0.0.1:1")
    member, staff = Client(), Client()
    member.force_login(user_create(email="a@acme.test", password="long-enough-7", tenant=tenant))
    staff.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    values = {
        "name": "pirate", "number": "1", "alias": "prod", "public_id": key.pk, "slug": "globex",
        "copy_id": copy.pk,
    }  # fmt: skip
    return World(values, manage, inference, owner_manage, member, staff)


def call(client: Client, method: str, path: str, key: str | None = None) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"content_type": "application/json"} if method != "get" else {}
    if method == "put":
        return client.put(path, {"version": 1}, headers=headers, content_type="application/json").status_code
    query = {"start": "2026-01-01", "end": "2026-01-02"} if path.endswith("usage") else {}
    return int(getattr(client, method)(path, query, headers=headers, **body).status_code)


def test_every_route_and_method_is_walked_and_states_its_permission() -> None:
    found = {}
    for name, pattern in _patterns().items():
        view = pattern.callback.cls  # type: ignore[attr-defined]
        assert "permission_classes" in vars(view), f"{name} states no permission"
        assert view.permission_classes
        assert Nobody not in view.permission_classes
        found[name] = {
            method for method in ("get", "post", "put", "patch", "delete") if hasattr(view, method)
        }
    assert found == {name: set(methods) for name, (methods, _) in ROUTES.items()}


@pytest.mark.parametrize(("name", "method"), CASES)
def test_a_stranger_is_told_to_authenticate(world: World, name: str, method: str) -> None:
    assert call(Client(), method, world.path(name)) == 401
    assert call(Client(), method, world.path(name), "gw_nobody_nothing") == 401


@pytest.mark.parametrize(("name", "method"), CASES)
def test_a_key_without_scope_manage_is_refused(world: World, name: str, method: str) -> None:
    assert call(Client(), method, world.path(name), world.inference) == 403


@pytest.mark.parametrize(("name", "method"), CASES)
def test_another_tenants_things_do_not_exist(world: World, name: str, method: str) -> None:
    owner, path = ROUTES[name][1], world.path(name)
    names_a_thing = "<" in str(_patterns()[name].pattern)
    expected = {
        STAFF: {403},
        SHARED: {200} if method == "get" else {403},
        OWN: {404} if names_a_thing else {200, 400},
    }[owner]
    assert call(Client(), method, path, world.manage) in expected
    assert call(world.member, method, path) in expected


@pytest.mark.parametrize(("name", "method"), CASES)
def test_the_owner_or_staff_is_let_in(world: World, name: str, method: str) -> None:
    path = world.path(name)
    if ROUTES[name][1] == OWN:
        status = call(Client(), method, path, world.owner_manage)
    else:
        status = call(world.staff, method, path)
    assert status in {200, 201, 204, 400}


@pytest.mark.parametrize("name", ["adapters", "keys"])
def test_lists_hold_only_ones_own(world: World, name: str) -> None:
    client = Client(headers={"Authorization": f"Bearer {world.manage}"})
    text = client.get(world.path(name)).content.decode()
    assert "pirate" not in text
    assert world.values["public_id"] not in text


def test_a_person_cannot_name_a_tenant_that_is_not_theirs(world: World) -> None:
    headers = {"X-Graftwork-Tenant": "globex"}
    assert world.member.get("/api/v1/adapters", headers=headers).status_code == 403


def test_sessions_need_a_csrf_token(world: World) -> None:
    client = Client(enforce_csrf_checks=True)
    client.cookies = world.member.cookies
    body = {"name": "k", "scopes": ["manage"]}
    assert client.post("/api/v1/keys", body, content_type="application/json").status_code == 403

"""A new version does not become the default of an adapter in use unless the caller says so."""

from __future__ import annotations

import datetime as dt
from io import BytesIO
from typing import Any

import pytest
from django.test import Client

from controlplane.adapters.aliases import adapter_pin, default_rollback
from controlplane.adapters.models import Adapter, AdapterVersion, AliasChange
from controlplane.adapters.selectors import adapter_route, default_number
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError
from controlplane.metering.adapter_use import adapter_is_called
from controlplane.metering.models import UsageRollup
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create, user_create
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db


def register(tenant: Tenant, base_model: BaseModel, **options: Any) -> AdapterVersion:
    files = {name: BytesIO(data) for name, data in adapter_files().items()}
    version = adapter_register(tenant=tenant, name="bot", base_model=base_model, files=files, **options)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert version.status == "ready"
    return version


def default_version() -> int | None:
    """Return the default version, on which the rows and the route table must agree."""
    adapter = Adapter.objects.select_related("pinned", "base_model").get(name="bot")
    route = adapter_route(adapter=adapter)
    assert route is not None
    assert route.default == default_number(adapter=adapter)
    return route.default


def call(version: AdapterVersion, *, alias: str = "", days_ago: int = 0) -> None:
    """One request in the usage report."""
    day = dt.datetime.now(dt.UTC).date() - dt.timedelta(days=days_ago)
    UsageRollup.objects.create(
        day=day,
        tenant="acme",
        project="p",
        key_id="k",
        adapter=version.engine_name,
        alias=alias,
        base_model="tiny-base",
        backend="worker",
        status="ok",
        requests=1,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
    )


def test_who_registers_says_which_version_the_bare_name_means(tenant: Tenant, base_model: BaseModel) -> None:
    first = register(tenant, base_model)
    register(tenant, base_model)
    assert default_version() == 2, "it follows the newest"
    register(tenant, base_model, make_default=False)
    assert default_version() == 2
    register(tenant, base_model)
    assert default_version() == 2, "kept for later versions too"
    register(tenant, base_model, make_default=True)
    assert default_version() == 5
    changes = AliasChange.objects.filter(adapter=first.adapter, alias="").order_by("pk")
    found = list(changes.values_list("before__version", "after__version"))
    assert found == [(1, 2), (2, 5)]
    assert AuditRecord.objects.filter(action="adapter.pin", target_name__contains="bot").exists()


def test_a_version_that_is_refused_takes_over_nothing(tenant: Tenant, base_model: BaseModel) -> None:
    register(tenant, base_model, make_default=False)
    files = adapter_files() | {"adapter_model.safetensors": b"x" * 64}
    version = adapter_register(
        tenant=tenant,
        name="bot",
        base_model=base_model,
        make_default=True,
        files={name: BytesIO(data) for name, data in files.items()},
    )
    version_validate(version_id=version.pk)
    assert default_version() == 1


def test_the_way_back_is_one_step_and_refuses_what_came_between(
    tenant: Tenant, base_model: BaseModel
) -> None:
    adapter = register(tenant, base_model).adapter
    with pytest.raises(ConflictError, match="no earlier version to return to"):
        default_rollback(adapter=adapter)
    register(tenant, base_model)
    default_rollback(adapter=adapter)
    assert default_version() == 1
    default_rollback(adapter=adapter)
    assert default_version() == 2, "a rollback is taken back alike"
    newest = AliasChange.objects.filter(alias="").latest("pk")
    adapter_pin(adapter=adapter, number=1)
    with pytest.raises(ConflictError, match="changed meanwhile"):
        default_rollback(adapter=adapter, newest=newest.pk)
    assert default_version() == 1


def test_only_calls_of_the_bare_name_in_the_last_days_count(tenant: Tenant, base_model: BaseModel) -> None:
    version = register(tenant, base_model)
    call(version, alias="prod")
    call(version, days_ago=8)
    assert not adapter_is_called(tenant="acme", name="bot")
    call(version, days_ago=7)
    assert adapter_is_called(tenant="acme", name="bot")
    assert not adapter_is_called(tenant="acme", name="bo")


def test_by_rest_a_called_name_keeps_its_version(tenant: Tenant, base_model: BaseModel) -> None:
    version = register(tenant, base_model)
    headers = {"Authorization": f"Bearer {api_key_create(tenant=tenant, name='m', scopes=['manage'])[1]}"}

    def post(path: str, body: dict[str, Any]) -> Any:
        answer = Client().post(f"/api/v1/{path}", body, "application/json", headers=headers)
        assert answer.status_code < 300, answer.content
        return answer.json()

    check = {"name": "bot", "base_model": base_model.name}
    assert post("adapter-checks", check) == {"default_version": 1, "becomes_default": True}
    call(version)
    assert post("adapter-checks", check) == {"default_version": 1, "becomes_default": False}
    told = post("adapter-checks", check | {"make_default": True})
    assert told == {"default_version": 1, "becomes_default": True}
    for path, options, number in (
        ("adapters", check, 1),
        ("adapters/bot/versions", {}, 1),
        ("adapters/bot/versions", {"make_default": "true"}, 4),
    ):
        parts = [BytesIO(data) for data in adapter_files().values()]
        for part, name in zip(parts, adapter_files(), strict=True):
            part.name = name
        answer = Client().post(f"/api/v1/{path}", {"files": parts, **options}, headers=headers)
        assert answer.status_code == 201, answer.content
        version_validate(version_id=AdapterVersion.objects.latest("number").pk)
        assert default_version() == number
    assert post("adapters/bot/rollback", {})["default_version"] == 1
    assert default_version() == 1


def test_the_pages_say_who_gets_what_and_offer_the_way_back(tenant: Tenant, base_model: BaseModel) -> None:
    version = register(tenant, base_model)
    member = Client()
    user = user_create(email="e@acme.test", password="long-enough-7", tenant=tenant, role=Role.ENGINEER)
    member.force_login(user)
    form = "/t/acme/adapters/new?name=bot"
    assert "It had no calls in 7 days" in member.get(form).content.decode()
    call(version)
    page = member.get(form).content.decode()
    assert "bot serves version 1. It is in use" in page
    files = [BytesIO(data) for data in adapter_files().values()]
    for file, name in zip(files, adapter_files(), strict=True):
        file.name = name
    sent = {"name": "bot", "base_model": base_model.name, "source": "files", "files": files}
    assert member.post("/t/acme/adapters/new", sent).status_code == 302
    version_validate(version_id=AdapterVersion.objects.latest("number").pk)
    assert default_version() == 1
    page = member.get("/t/acme/adapters/bot/").content.decode()
    assert "bot serves version 1. Version 2 is ready." in page
    assert "default-rollback" not in page
    member.post("/t/acme/adapters/bot/pin", {"number": "2"})
    assert default_version() == 2
    page = member.get("/t/acme/adapters/bot/").content.decode()
    assert "Roll back to version 1" in page
    newest = AliasChange.objects.get(alias="").pk
    page = member.post("/t/acme/adapters/bot/rollback", {"newest": newest}, follow=True).content.decode()
    assert "bot points to version 1 again" in page
    assert default_version() == 1

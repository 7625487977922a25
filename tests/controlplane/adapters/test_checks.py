"""A registration is checked before its files are uploaded, by the rules that hold when it is made."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from controlplane.adapters.lifecycle import adapter_delete
from controlplane.adapters.models import AdapterQuota, AdapterVersion
from controlplane.adapters.quotas import quota_set
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, user_create
from tests.controlplane.adapters.test_quotas import SIZE, register

pytestmark = pytest.mark.django_db


@pytest.fixture
def check(tenant: Tenant, base_model: BaseModel) -> Any:
    """Asks by REST and returns the status with the first problem's field and text."""
    headers = {"Authorization": f"Bearer {api_key_create(tenant=tenant, name='m', scopes=['manage'])[1]}"}

    def ask(**values: Any) -> tuple[int, str, str]:
        body = {"name": "pirate", "base_model": base_model.name, "size_bytes": SIZE, **values}
        answer = Client().post("/api/v1/adapter-checks", body, "application/json", headers=headers)
        problem = answer.json().get("errors", [{"attr": "", "detail": ""}])[0]
        return answer.status_code, problem["attr"] or "", problem["detail"]

    return ask


def test_what_a_registration_would_be_refused_for_is_refused_before(
    tenant: Tenant, base_model: BaseModel, check: Any
) -> None:
    assert check() == (200, "", "")
    assert not AdapterVersion.objects.exists()
    for values, status, field, text in (
        ({"name": "No Slug"}, 400, "name", "lower-case letters"),
        ({"name": base_model.name}, 409, "", "is a base model"),
        ({"base_model": "nowhere"}, 404, "", "nowhere"),
        ({"run_url": "javascript:alert(1)"}, 400, "run_url", "http:// or https://"),
        ({"size_bytes": -1}, 400, "size_bytes", "greater than or equal to 0"),
    ):
        found = check(**values)
        assert (found[0], found[1], text in found[2]) == (status, field, True), found
    adapter = register(tenant, base_model).adapter
    assert check()[0] == 200, "the next version"
    adapter_delete(adapter=adapter)
    assert (check()[0], "keeps its name" in check()[2]) == (409, True)


def test_the_quota_is_checked_with_the_size_of_the_files(tenant: Tenant, check: Any) -> None:
    quota_set(tenant=tenant, size_bytes=SIZE)
    assert check()[0] == 200
    status, _, text = check(size_bytes=SIZE + 1)
    assert (status, f"has 0, and this version has {SIZE + 1}" in text) == (409, True)
    assert check(size_bytes=0)[0] == 200, "unknown"
    quota_set(tenant=tenant, adapters=0)
    assert "may keep 0 adapters" in check()[2]
    assert AdapterQuota.objects.get().adapters == 0


def test_an_adapter_of_another_base_is_refused(tenant: Tenant, base_model: BaseModel, check: Any) -> None:
    register(tenant, base_model)
    base_model.pk, base_model.name = None, "other-base"
    base_model.save(force_insert=True)
    assert "belongs to base model" in check(base_model="other-base")[2]


def test_the_page_checks_its_form_before_files_are_sent(tenant: Tenant, base_model: BaseModel) -> None:
    browser = Client(headers={"HX-Request": "true"})
    browser.force_login(user_create(email="a@acme.test", password="long-enough-7", tenant=tenant))
    good = {"name": "pirate", "base_model": base_model.name, "source": "files", "size_bytes": str(SIZE)}

    def ask(**values: str) -> tuple[int, str]:
        reply = browser.post("/t/acme/adapters/new/check", good | values)
        return reply.status_code, reply.text

    assert ask() == (204, "")
    quota_set(tenant=tenant, size_bytes=SIZE)
    for values, field, text in (
        ({"name": "No Slug"}, "name", "lower-case letters"),
        ({"name": base_model.name}, "name", "is a base model"),
        ({"base_model": ""}, "base_model", "choose the base model"),
        ({"run_url": "javascript:alert(1)"}, "run_url", "http:// or https://"),
        ({"size_bytes": str(SIZE + 1)}, "name", f"this version has {SIZE + 1}"),
    ):
        status, page = ask(**values)
        assert (status, f'id="error-{field}"' in page, text in page) == (422, True, True), values
        assert page.startswith("<form"), "it takes the place of the form"
    assert ask(size_bytes="unknown") == (204, "")
    assert not AdapterVersion.objects.exists()

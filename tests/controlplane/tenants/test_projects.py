"""Projects and service accounts: what keys belong to, and what ends with them."""

from __future__ import annotations

from functools import partial

import pytest
from django.test import Client

from controlplane.errors import ConflictError, ForbiddenError, InvalidInputError
from controlplane.routes.selectors import route_table
from controlplane.tenants.access import Access
from controlplane.tenants.models import ApiKey, Project, ServiceAccount, Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.selectors import project_get
from controlplane.tenants.services import (
    api_key_create,
    api_key_revoke,
    project_archive,
    project_create,
    service_account_create,
    service_account_disable,
    service_account_set_role,
    user_create,
)
from tests.controlplane.adapters.test_races import at_once

pytestmark = pytest.mark.django_db


def make_account(tenant: Tenant, role: str = "engineer", name: str = "ci") -> ServiceAccount:
    project = Project.objects.filter(tenant=tenant, slug="chat").first() or project_create(
        tenant=tenant, slug="chat", name="Chat"
    )
    return service_account_create(project=project, name=name, role=role)


def make_key(account: ServiceAccount, *scopes: str, by: Access | None = None) -> tuple[ApiKey, str]:
    return api_key_create(
        tenant=account.tenant, name="k", scopes=scopes or ["inference"], service_account=account, by=by
    )


def status(method: str, path: str, key: str, **body: str) -> int:
    call = getattr(Client(headers={"Authorization": f"Bearer {key}"}), method)
    return int(call(path, body, content_type="application/json").status_code)


def test_usage_of_a_key_is_told_by_its_project(tenant: Tenant) -> None:
    alone, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    owned, _ = make_key(make_account(tenant))
    table = route_table()
    assert {table.keys[key.pk].project for key in (alone, owned)} == {"default", "chat"}
    other = project_create(tenant=tenant, slug="other", name="")
    with pytest.raises(ConflictError, match="another project"):
        api_key_create(
            tenant=tenant,
            name="k",
            scopes=["inference"],
            project=other,
            service_account=owned.service_account,
        )


def test_a_key_never_belongs_to_another_tenants_project(tenant: Tenant, other_tenant: Tenant) -> None:
    foreign = project_get(tenant=other_tenant, slug="default")
    with pytest.raises(ConflictError, match="project"):
        api_key_create(tenant=tenant, name="k", scopes=["inference"], project=foreign)


def test_a_key_may_what_its_account_may(tenant: Tenant) -> None:
    account = make_account(tenant, "viewer")
    _, text = make_key(account, "manage")
    assert status("get", "/api/v1/adapters", text) == 200
    assert status("post", "/api/v1/keys", text) == 403
    service_account_set_role(account=account, role="billing")
    assert status("get", "/api/v1/adapters", text) == 403
    assert status("get", "/api/v1/members", text) == 403
    service_account_set_role(account=account, role="admin")
    assert status("get", "/api/v1/members", text) == 200


def test_an_engineer_gets_no_admin_by_a_key(tenant: Tenant) -> None:
    account, engineer = make_account(tenant, "admin"), Access(tenant, Role.ENGINEER)
    with pytest.raises(ForbiddenError, match=r"it grants audit\.read"):
        make_key(account, "manage", by=engineer)
    with pytest.raises(ForbiddenError, match="admin"):
        service_account_set_role(account=account, role="viewer", by=engineer)
    with pytest.raises(ForbiddenError, match="admin"):
        service_account_disable(account=account, by=engineer)
    with pytest.raises(ForbiddenError, match="admin"):
        service_account_create(project=account.project, name="x", role="admin", by=engineer)
    make_key(account, "inference", by=engineer)


def test_disabling_an_account_ends_its_keys_and_it_gets_no_more(tenant: Tenant) -> None:
    account = make_account(tenant)
    (first, text), (second, _) = make_key(account, "manage", "inference"), make_key(account)
    other, _ = make_key(make_account(tenant, name="other"))
    service_account_disable(account=account)
    assert set(route_table().keys) == {other.pk}
    assert status("get", "/api/v1/adapters", text) == 401
    assert {ApiKey.objects.get(pk=key.pk).is_live for key in (first, second)} == {False}
    with pytest.raises(ConflictError, match="disabled"):
        make_key(account)
    with pytest.raises(ConflictError, match="disabled"):
        service_account_set_role(account=account, role="viewer")


def test_a_project_in_use_is_not_archived(tenant: Tenant) -> None:
    account = make_account(tenant)
    project = account.project
    api_key, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"], project=project)
    for end in (partial(service_account_disable, account=account), partial(api_key_revoke, api_key=api_key)):
        with pytest.raises(ConflictError, match="first"):
            project_archive(project=project)
        end()
    assert project_archive(project=project).archived_at is not None
    with pytest.raises(ConflictError, match="archived"):
        api_key_create(tenant=tenant, name="k", scopes=["inference"], project=project)
    with pytest.raises(ConflictError, match="archived"):
        service_account_create(project=project, name="late", role="viewer")
    with pytest.raises(ConflictError, match="default"):
        project_archive(project=project_get(tenant=tenant, slug="default"))


@pytest.mark.django_db(transaction=True)
def test_a_key_made_while_its_account_or_project_ends_does_not_outlive_it(tenant: Tenant) -> None:
    account = make_account(tenant)
    at_once([partial(make_key, account)] * 3 + [partial(service_account_disable, account=account)])
    assert not [key for key in ApiKey.objects.all() if key.is_live]
    project = project_create(tenant=tenant, slug="short", name="")
    make = partial(api_key_create, tenant=tenant, name="k", scopes=["inference"], project=project)
    *_, archived = at_once([make] * 2 + [partial(project_archive, project=project)])
    live = [key for key in project.api_keys.all() if key.is_live]
    assert isinstance(archived, ConflictError) or not live


@pytest.mark.parametrize("name", ["Not A Slug", "", "-x", "x" * 64])
def test_names_are_slugs(name: str, tenant: Tenant) -> None:
    with pytest.raises(InvalidInputError):
        project_create(tenant=tenant, slug=name, name="")
    with pytest.raises(InvalidInputError):
        make_account(tenant, name=name)


def test_rest_and_pages(tenant: Tenant) -> None:
    client = Client()
    client.force_login(user_create(email="o@acme.test", password="long-enough-7", tenant=tenant))
    for path, values in (
        ("projects", {"slug": "chat", "name": "Chat"}),
        ("service-accounts", {"name": "ci", "project": "chat", "role": "viewer"}),
    ):
        url = f"/api/v1/{path}"
        assert client.post(url, values, content_type="application/json").status_code == 201
        assert client.post(url, values, content_type="application/json").status_code == 409
        assert client.post(f"/t/acme/{path}/", values).status_code == 422
        assert client.get(f"/t/acme/{path}/").status_code == 200
    owner = {"role": "owner"}
    refused = client.patch("/api/v1/service-accounts/ci", owner, content_type="application/json")
    assert refused.status_code == 400
    form = {"name": "k", "scopes": ["manage"], "lifetime": "", "owner": "account:ci"}
    assert client.post("/t/acme/keys/", form).status_code == 200
    api_key = ApiKey.objects.get()
    assert (api_key.project.slug, api_key.service_account.name) == ("chat", "ci")  # type: ignore[union-attr]
    body = client.get(f"/api/v1/keys/{api_key.pk}").json()
    assert (body["project"], body["service_account"]) == ("chat", "ci")
    client.post("/t/acme/service-accounts/ci/role", {"role": "billing"})
    assert client.get("/api/v1/service-accounts/ci").json()["role"] == "billing"
    client.post("/t/acme/service-accounts/ci/disable")
    assert client.get("/api/v1/service-accounts/ci").json()["disabled_at"] is not None
    client.post("/t/acme/projects/chat/rename", {"name": "Talk"})
    assert client.get("/api/v1/projects/chat").json()["name"] == "Talk"
    client.post("/t/acme/projects/chat/archive")
    assert client.get("/api/v1/projects/chat").json()["archived_at"] is not None

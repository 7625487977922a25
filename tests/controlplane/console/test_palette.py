"""The command palette's search: what a user sees, and nothing of another tenant."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.catalog.models import BaseModel
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.tenants.models import Membership
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from tests.controlplane.console.conftest import PASSWORD, Team

pytestmark = pytest.mark.django_db


def results_of(client: Client, path: str, part: str) -> dict[str, str]:
    """Titles of the results, with their links."""
    answer = client.get(path, {"q": part})
    assert answer.status_code == 200
    return {row["title"]: row["url"] for row in answer.json()["found"]}


def test_a_member_finds_what_its_tenant_has(client: Client, acme: Team, globex: Team) -> None:
    client.force_login(acme.user)
    assert results_of(client, "/t/acme/find", "BOT") == {"support-bot": "/t/acme/adapters/support-bot/"}
    assert results_of(client, "/t/acme/find", "tiny") == {"tiny": "/t/acme/playground/?model=tiny"}
    assert results_of(client, "/t/acme/find", "globex") == {}
    assert results_of(client, "/t/acme/find", "100%_") == {}
    Membership.objects.create(user=acme.user, tenant=globex.tenant)
    assert list(results_of(client, "/t/acme/find", "globex").values()) == ["/t/globex/"]
    Membership.objects.filter(user=acme.user, tenant=acme.tenant).update(role=Role.BILLING)
    assert results_of(client, "/t/acme/find", "bot") == {}


def test_staff_find_everything(client: Client, acme: Team, globex: Team, base: BaseModel) -> None:
    target = target_create(name="vllm", kind="openai_http", urls=["http://a:1"])
    deployment_create(name="bot-tiny", target=target, base_model=base)
    client.force_login(user_create(email="s@graft.test", password=PASSWORD, is_staff=True))
    results = results_of(client, "/staff/find", "bot")
    assert results["bot-tiny"] == "/staff/deployments/bot-tiny/"
    assert results["acme/support-bot"] == "/staff/tenants/acme/monitoring/?search=support-bot"
    assert list(results_of(client, "/staff/find", "acme")) == ["Acme Robotics (acme)"]
    assert results_of(client, "/staff/find", "tiny")["tiny"] == "/staff/base-models/tiny/"
    for url in results.values():
        assert client.get(url).status_code == 200

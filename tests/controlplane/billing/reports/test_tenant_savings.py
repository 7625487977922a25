"""A tenant's savings report counts its own adapters and payments alone, at stated prices."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from contracts.adapters.reference import engine_name
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.models import PriceBook
from controlplane.billing.reports.instance_prices import instance_price_set
from controlplane.billing.services import hosting_price_set, price_book_create, price_set
from controlplane.metering.models import HostingHour, UsageRollup
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create, service_account_create, user_create

pytestmark = pytest.mark.django_db
DAY = dt.date(2026, 1, 10)
RANGE = {"start": "2026-01-01", "end": "2026-01-31"}


def hosted(
    tenant: str, adapter: str, hours: int, *, day: dt.date = DAY, deployment: str = "", **of: Any
) -> None:
    name = engine_name(tenant=tenant, adapter=adapter, version=1, sha256="ab" * 32)
    for hour in range(hours):
        values = {"kind": "adapter", "base_model": "tiny", "tier": "stored", "instance_type": "", **of}
        HostingHour.objects.create(
            tenant=tenant,
            day=day,
            hour=hour,
            adapter=name,
            deployment=deployment,
            quantity_seconds=3600,
            **values,
        )


def used(tenant: str, requests: int, base_model: str = "tiny") -> None:
    UsageRollup.objects.create(
        day=DAY,
        tenant=tenant,
        project="default",
        key_id="k",
        adapter="",
        alias="",
        base_model=base_model,
        backend="worker",
        status="ok",
        requests=requests,
        prompt_tokens=requests * 1000,
        cached_tokens=0,
        completion_tokens=0,
    )


@pytest.fixture
def priced(db: None) -> None:
    book = price_book_create(name="list")
    price_set(
        book=book,
        base_model="tiny",
        effective_from=dt.date(2020, 1, 1),
        input_nano=1000,
        cached_input_nano=0,
        output_nano=0,
    )
    for kind, hour in (("ml.g5.2xlarge", 1_515_000_000), ("ml.g5.xlarge", 1_000_000_000)):
        instance_price_set(
            instance_type=kind,
            region="us-east-1",
            effective_from=dt.date(2020, 1, 1),
            hour_nano=hour,
            source="the operator's contract",
        )


def saving(client: Client, tenant: Tenant, **query: str) -> Any:
    _, text = api_key_create(tenant=tenant, name="k", scopes=["manage"], service_account=_account(tenant))
    return client.get("/api/v1/savings", {**RANGE, **query}, headers={"Authorization": f"Bearer {text}"})


def _account(tenant: Tenant) -> Any:
    found = tenant.service_accounts.filter(name="billing").first()
    return found or service_account_create(
        project=tenant.projects.get(slug="default"), name="billing", role=Role.BILLING
    )


@pytest.mark.usefixtures("priced")
def test_it_counts_ones_own_adapters_and_payments(
    client: Client, tenant: Tenant, other_tenant: Tenant
) -> None:
    hosted("acme", "pirate", 10)
    hosted("acme", "poet", 4)
    hosted("globex", "secret", 20)
    used("acme", 2000)
    used("globex", 9000)
    found = saving(client, tenant).json()
    # 14 hours at the cheapest, 1 USD; two million input tokens at 1000 nano.
    assert found["adapter_hours"] == "14.000000"
    assert found["dedicated"] == "14.000000000"
    assert found["paid"] == "2.000000000"
    assert found["percent"] == "85.71"
    assert [(row["adapter"], row["hours"]) for row in found["versions"]] == [
        ("pirate", "10.000000"),
        ("poet", "4.000000"),
    ]
    assert found["dedicated_price"]["source"] == "the operator's contract"
    assert saving(client, tenant, dedicated_type="ml.g5.2xlarge").json()["dedicated"] == "21.210000000"


@pytest.mark.usefixtures("priced")
def test_a_version_on_two_deployments_needs_one_endpoint(client: Client, tenant: Tenant) -> None:
    for deployment in ("a", "b"):
        hosted("acme", "pirate", 3, deployment=deployment, tier="placed")
    assert saving(client, tenant, tier="placed").json()["adapter_hours"] == "3.000000"
    assert saving(client, tenant).json()["percent"] is None


@pytest.mark.usefixtures("priced")
def test_what_is_unpriced_states_no_saving(client: Client, tenant: Tenant) -> None:
    hosted("acme", "pirate", 3)
    used("acme", 2000)
    used("acme", 1, base_model="unpriced")
    found = saving(client, tenant).json()
    assert (found["percent"], found["unpriced"]) == (None, True)
    assert found["paid"] == "2.000000000", "what has a price"


@pytest.mark.usefixtures("priced")
def test_hosting_without_a_price_states_no_saving_either(client: Client, tenant: Tenant) -> None:
    hosted("acme", "pirate", 3, tier="placed")
    used("acme", 2000)
    assert saving(client, tenant, tier="placed").json()["unpriced"] is False
    hosting_price_set(
        book=PriceBook.objects.get(),
        kind="adapter_hour",
        base_model="other",
        nano=5,
        effective_from=dt.date(2026, 1, 1),
    )
    usage_post(tenant="acme", start=DAY, end=DAY)
    found = saving(client, tenant, tier="placed").json()
    assert (found["percent"], found["unpriced"]) == (None, True)


@pytest.mark.usefixtures("priced")
def test_each_day_is_at_its_own_price(client: Client, tenant: Tenant) -> None:
    instance_price_set(
        instance_type="ml.g5.xlarge",
        region="us-east-1",
        effective_from=dt.date(2026, 1, 11),
        hour_nano=3_000_000_000,
        source="the new contract",
    )
    hosted("acme", "pirate", 1)
    hosted("acme", "pirate", 1, day=dt.date(2026, 1, 11))
    found = saving(client, tenant, dedicated_type="ml.g5.xlarge").json()
    assert found["dedicated"] == found["versions"][0]["dedicated"] == "4.000000000"


def test_what_cannot_be_asked_is_refused(client: Client, tenant: Tenant) -> None:
    assert "no machine has a price" in str(saving(client, tenant, region="eu-west-9").json())
    assert saving(client, tenant, end="2026-03-01").status_code == 400
    assert saving(client, tenant, tier="x").status_code == 400


@pytest.mark.usefixtures("priced")
def test_days_before_the_calendar_are_told_by_their_field(client: Client, tenant: Tenant) -> None:
    client.force_login(user_create(email="o@x.test", password="long-enough-7", tenant=tenant))
    for path in ("savings", "requests"):
        early = client.get(f"/api/v1/{path}", {"end": "0001-01-05"})
        assert early.status_code == 400, path
        assert "are out of range" in early.content.decode()
        assert '"end"' in early.content.decode()


@pytest.fixture
def member(client: Client, tenant: Tenant) -> Client:
    client.force_login(
        user_create(email="b@x.test", password="long-enough-7", tenant=tenant, role=Role.BILLING)
    )
    return client


def test_the_page_without_prices_says_who_states_them(member: Client) -> None:
    page = member.get("/t/acme/billing/savings/", {"region": "eu-west-9"}).content.decode()
    assert "Your operator has not set instance prices" in page


@pytest.mark.usefixtures("priced")
def test_the_page_shows_the_same(member: Client, tenant: Tenant, other_tenant: Tenant) -> None:
    hosted("acme", "pirate", 10)
    hosted("globex", "secret", 10)
    used("acme", 2000)
    answer = member.get("/t/acme/billing/savings/", RANGE)
    page = answer.content.decode()
    for shown in ("80.00 %", "$10.00", "$2.00", "ml.g5.xlarge in us-east-1", "pirate"):
        assert shown in page, shown
    assert "secret" not in page
    wrong = member.get("/t/acme/billing/savings/", {**RANGE, "dedicated_type": "ml.none.large"})
    assert wrong.status_code == 422
    assert "has no price" in wrong.content.decode()
    early = member.get("/t/acme/billing/savings/", {"end": "0001-01-05"})
    assert early.status_code == 422
    assert "are out of range" in early.content.decode()
    today = member.get("/t/acme/billing/savings/").content.decode()
    assert "No adapters in this range" in today
    assert f'value="{timezone.now().date()}"' in today


def test_an_engineer_may_not_see_what_is_paid(client: Client, tenant: Tenant) -> None:
    client.force_login(
        user_create(email="e@x.test", password="long-enough-7", tenant=tenant, role=Role.ENGINEER)
    )
    assert client.get("/t/acme/billing/savings/").status_code == 403

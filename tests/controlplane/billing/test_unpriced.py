"""Every amount that leaves out unpriced usage says so."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.utils import timezone

from contracts.adapters.reference import engine_name
from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.models import PostedDay, PriceBook
from controlplane.billing.services import hosting_price_set
from controlplane.billing.unpriced import unbilled_unpriced, usage_unpriced
from controlplane.metering.models import HostingHour
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from tests.controlplane.billing.test_invoices import JANUARY, finalized, priced, use

__all__ = ["priced"]
pytestmark = pytest.mark.django_db


def today() -> dt.date:
    return timezone.now().date()


def placed(adapter: str, base: str = "tiny", *, day: dt.date | None = None) -> None:
    """An hour of an adapter on a deployment."""
    HostingHour.objects.create(
        tenant="acme",
        day=day or today(),
        hour=0,
        kind="adapter",
        tier="placed",
        base_model=base,
        adapter=engine_name(tenant="acme", adapter=adapter, version=1, sha256="ab" * 32),
        deployment="d",
        instance_type="",
        quantity_seconds=3600,
    )


def hour_price(base_model: str, adapter: str = "") -> None:
    hosting_price_set(
        book=PriceBook.objects.get(),
        kind="adapter_hour",
        effective_from=JANUARY,
        nano=10,
        base_model=base_model,
        adapter=adapter,
    )


def booked_unpriced() -> bool:
    """Once today is booked."""
    usage_post(tenant="acme", start=today(), end=today())
    return usage_unpriced(tenant="acme", start=today(), end=today())


def clients(tenant: Tenant) -> tuple[Client, Client]:
    """A billing member and staff."""
    member, staff = Client(), Client()
    member.force_login(
        user_create(email="b@acme.test", password="long-enough-7", tenant=tenant, role=Role.BILLING)
    )
    staff.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return member, staff


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, path
    return answer.content.decode()


def test_a_balance_says_that_some_usage_is_not_in_it(priced: Tenant) -> None:
    member, staff = clients(priced)
    use(str(today()), 1000)
    paths = ("/api/v1/billing", "/api/v1/tenants/acme/billing")
    assert [c.get(path).json()["unpriced"] for c, path in zip((member, staff), paths, strict=True)] == [
        False,
        False,
    ]
    assert "unpriced" not in text(member, "/t/acme/billing/")
    assert "unpriced" not in text(staff, "/staff/tenants/acme/")
    use(str(today()), 1, base="unknown")
    assert booked_unpriced()
    assert [c.get(path).json()["unpriced"] for c, path in zip((member, staff), paths, strict=True)] == [
        True,
        True,
    ]
    assert 'data-testid="unbilled-unpriced"' in text(member, "/t/acme/billing/")
    assert 'data-testid="available-unpriced"' in text(staff, "/staff/tenants/acme/")


def test_what_a_finalized_invoice_left_unpriced_is_no_longer_of_the_balance(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    use("2026-01-06", 77, base="unknown")
    invoice_draft(tenant="acme", month=JANUARY)
    assert unbilled_unpriced(tenant="acme")
    invoice = finalized(JANUARY, allow_unpriced=True)
    assert not unbilled_unpriced(tenant="acme")
    _, staff = clients(priced)
    page = text(staff, f"/staff/invoices/{invoice.pk}/")
    assert "Some usage has no price" in page
    assert page.count(">unpriced<") == 1, "its line is no zero"


def test_a_budget_says_that_what_is_spent_may_be_more(priced: Tenant) -> None:
    tenant_limits_set(tenant=priced, budget_nano=10**12)
    member, _ = clients(priced)
    use(str(today()), 1000)
    for path in ("/t/acme/billing/", "/t/acme/"):
        assert 'data-testid="budget-unpriced"' not in text(member, path)
    use(str(today()), 1, base="unknown")
    assert booked_unpriced()
    for path in ("/t/acme/billing/", "/t/acme/"):
        assert 'data-testid="budget-unpriced"' in text(member, path)


def test_time_without_a_price_is_told_as_it_is_booked(priced: Tenant) -> None:
    placed("pirate")
    placed("poet", "other")
    assert not booked_unpriced(), "the operator asks no price for time"
    hour_price("tiny")
    assert booked_unpriced()
    hour_price("other", "acme/poet")
    assert not booked_unpriced(), "its own price is enough, also for what was booked before"
    placed("another", "other")
    assert booked_unpriced()


def test_days_of_a_release_that_did_not_say_are_looked_at_once_more(priced: Tenant) -> None:
    use(str(today()), 1, base="unknown")
    assert booked_unpriced()
    PostedDay.objects.update(unpriced=None)
    assert not usage_unpriced(tenant="acme", start=today(), end=today())
    assert booked_unpriced()
    use(str(today()), 0)
    usage_post(tenant="acme", start=today(), end=today())
    assert unbilled_unpriced(tenant="acme")


def test_days_of_closed_months_are_not_looked_at_once_more(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    use("2026-02-05", 100_000)
    finalized(JANUARY)
    usage_post(tenant="acme", start=JANUARY, end=today())
    PostedDay.objects.update(unpriced=None)
    usage_post(tenant="acme", start=JANUARY, end=today())
    told = dict(PostedDay.objects.values_list("day", "unpriced"))
    assert told == {dt.date(2026, 1, 5): None, dt.date(2026, 2, 5): False}


def test_a_request_without_tokens_lacks_no_price(priced: Tenant) -> None:
    use(str(today()), 0, base="unknown")
    assert not booked_unpriced()

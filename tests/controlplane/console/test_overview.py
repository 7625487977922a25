"""The operator's overview: what needs attention with the page of its remedy, figures, set-up, health."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.billing.invoices.services import invoice_draft, invoice_finalize
from controlplane.billing.ledger.credits import payment_record
from controlplane.billing.models import (
    Account,
    BudgetNotice,
    EntryKind,
    Invoice,
    JournalEntry,
    LedgerHead,
    UsagePosting,
)
from controlplane.billing.services import price_book_create
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.services import copy_register
from controlplane.deployments.models import Copy, Deployment, Target
from controlplane.metering.models import UsageRollup
from controlplane.monitoring.models import Alarm, State
from controlplane.optimization.models import OptimizationJob
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.services import tenant_suspend, user_create
from tests.controlplane.billing.parties import parties_state
from tests.controlplane.console.conftest import Team, use

pytestmark = pytest.mark.django_db
NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def page_of(staff: Client, query: str = "") -> str:
    answer = staff.get(f"/staff/{query}")
    assert answer.status_code == 200
    return answer.content.decode()


def items_of(page: str) -> dict[str, str]:
    """The items that need attention: name to link."""
    return {name: url for url, name in re.findall(r'href="([^"]+)" data-testid="to-do-([\w-]+)"', page)}


def test_a_new_installation_is_led_through_its_set_up(staff: Client) -> None:
    page = page_of(staff)
    assert re.findall(r'class="step( step-done)?" data-testid="set-up-(\w+)"', page) == [
        ("", "base"),
        ("", "deploy"),
        ("", "tenant"),
        ("", "prices"),
    ]
    price_book_create(name="Prices")
    assert ' step-done" data-testid="set-up-prices"' in page_of(staff)


def test_each_problem_leads_to_the_page_of_its_remedy(staff: Client, acme: Team, base: BaseModel) -> None:
    target = Target.objects.create(name="host", kind="local")
    deployment = Deployment.objects.create(
        name="broken", target=target, base_model=base, hosting="on_demand", status="failed", reason="no disk"
    )
    copy = copy_register(base_model=base, kind="worker", url="http://worker.test:9000")
    Copy.objects.filter(pk=copy.pk).update(silent_since=timezone.now() - dt.timedelta(minutes=7))
    alarm = Alarm.objects.create(
        name="slow", metric="ttft_p95_ms", comparison="GreaterThanThreshold", threshold=1, period_seconds=60,
        evaluation_periods=1, datapoints_to_alarm=1, notify_on=[], deployment=deployment, state=State.ALARM,
    )  # fmt: skip
    job = OptimizationJob.objects.create(
        base_model=base,
        variant_name="int8",
        recipe={},
        status="failed",
        ended_at=timezone.now(),
        machine="cpu",
    )
    tenant_suspend(tenant=acme.tenant, reason="unpaid for months")
    items = items_of(page_of(staff))
    assert items == {
        "deployment": "/staff/deployments/broken/",
        "copy": f"/staff/fleet/copies/{copy.pk}/",
        "alarm": f"/staff/alarms/{alarm.pk}/",
        "suspended": "/staff/tenants/acme/",
        "job": f"/staff/optimizations/{job.pk}/",
    }
    for url in items.values():
        assert staff.get(url).status_code == 200
    assert "has not responded for 7 minutes" in page_of(staff)
    OptimizationJob.objects.update(ended_at=timezone.now() - dt.timedelta(days=8))
    Alarm.objects.update(enabled=False)
    assert items_of(page_of(staff)).keys() == {"deployment", "copy", "suspended"}


def test_a_reached_budget_needs_attention_until_it_is_raised(staff: Client, acme: Team) -> None:
    tenant_limits_set(tenant=acme.tenant, budget_nano=10**9, budget_period="month")
    notice = {"tenant": "acme", "percent": 100, "budget_nano": 10**9, "spent_nano": 10**9}
    period = f"{timezone.now():%Y-%m}"
    BudgetNotice.objects.create(scope="tenant:acme", period="2020-01", **notice)
    BudgetNotice.objects.create(scope="tenant:acme", period=period, **notice | {"percent": 80})
    assert "budget" not in items_of(page_of(staff))
    BudgetNotice.objects.create(scope="tenant:acme", period=period, **notice)
    assert items_of(page_of(staff))["budget"] == "/staff/tenants/acme/"
    ScopeLimits.objects.update(budget_nano=2 * 10**9)
    assert "budget" not in items_of(page_of(staff))


def billed(team: Team, month: dt.date) -> Invoice:
    """A draft of usage in that month: $1.50."""
    UsageRollup.objects.create(
        day=month, tenant=team.tenant.pk, project="default", key_id=team.key.pk, adapter="", alias="",
        base_model="tiny", backend="worker", status="ok", requests=1, prompt_tokens=10**7, cached_tokens=0,
        completion_tokens=0,
    )  # fmt: skip
    return invoice_draft(tenant=team.tenant.pk, month=month)


@pytest.mark.usefixtures("priced")
def test_unpaid_invoices_and_old_drafts_lead_to_their_lists(staff: Client, acme: Team, globex: Team) -> None:
    parties_state()
    parties_state("globex")
    start = timezone.now().date().replace(day=1)
    months = [(start - dt.timedelta(days=days)).replace(day=1) for days in (70, 1)]
    paid = invoice_finalize(invoice=billed(acme, months[0]))
    payment_record(tenant=acme.tenant, amount_nano=paid.due_nano, invoice=paid)
    assert items_of(page_of(staff)) == {}
    unpaid = invoice_finalize(invoice=billed(globex, months[0]))
    payment_record(tenant=globex.tenant, amount_nano=5 * 10**8, invoice=unpaid)
    draft = billed(acme, months[1])
    current = invoice_draft(tenant="acme", month=start)
    page = page_of(staff)
    assert items_of(page) == {
        "unpaid": "/staff/invoices/?status=unpaid",
        "drafts": "/staff/invoices/?status=draft",
    }
    assert "1 invoice is unpaid: $1.00." in page
    assert "1 draft invoice is ready" in page
    everything = {paid.pk, unpaid.pk, draft.pk, current.pk}
    assert invoices_listed(staff, "") == everything
    assert invoices_listed(staff, "?status=unpaid") == {unpaid.pk}
    assert invoices_listed(staff, "?status=draft") == {draft.pk, current.pk}


def invoices_listed(staff: Client, query: str) -> set[int]:
    page = staff.get(f"/staff/invoices/{query}").content.decode()
    return set(map(int, re.findall(r'class="name hover:underline" href="/staff/invoices/(\d+)/"', page)))


def test_figures_are_of_all_tenants_in_the_range(
    staff: Client, acme: Team, globex: Team, base: BaseModel
) -> None:
    use(acme, base, "bot", days=2)
    use(globex, base, "bot", days=2)
    today = timezone.now().date()
    LedgerHead.objects.bulk_create([LedgerHead(tenant="acme"), LedgerHead(tenant="globex")])
    booked = [("acme", 0, 3), ("globex", 0, 4), ("acme", 6, 2), ("acme", 7, 1000)]
    for at, (tenant, ago, dollars) in enumerate(booked):
        day, nano = today - dt.timedelta(days=ago), dollars * 10**9
        entry = JournalEntry.objects.create(
            tenant=tenant, number=at + 1, at=NOW, day=day, kind=EntryKind.USAGE, debit=Account.UNBILLED,
            credit=Account.REVENUE, amount_nano=nano, currency="USD",
        )  # fmt: skip
        UsagePosting.objects.create(
            entry=entry, tenant=tenant, day=day, month=day.replace(day=1), item="input", quantity=1,
            unit_nano=1, per=1, amount_nano=nano,
        )  # fmt: skip
    page = page_of(staff, "?days=7")
    assert re.findall(r'overview-spend">([^<]+)<', page) == ["$9.00"]
    assert re.findall(r'overview-tenant-(\w+)"', page) == ["acme", "globex"]
    assert 'data-testid="overview-requests">0<' not in page
    assert re.findall(r'overview-spend">([^<]+)<', page_of(staff, "?days=1")) == ["$7.00"]
    assert re.findall(r'aria-current="true" data-testid="([\w-]+)"', page_of(staff)) == ["month-this"]


def test_the_health_part_names_what_is_down(staff: Client, base: BaseModel) -> None:
    answer = staff.get("/staff/overview/health")
    assert answer.status_code == 200
    assert 'href="/staff/health/#part-' in answer.content.decode()

"""The pages of money: what a tenant owes, an invoice with its files, price books, everybody's invoices."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from contracts.limits import budget_period
from controlplane.billing.documents.pdfs import pdf_render
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.ledger.credits import credit_grant, payment_record
from controlplane.billing.models import (
    BudgetNotice,
    HostingPrice,
    Invoice,
    JournalEntry,
    Price,
    PriceBook,
    PriceBookTerm,
)
from controlplane.metering.models import UsageRollup
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from tests.controlplane.billing.parties import parties_state

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("weasyprint")]
JANUARY = dt.date(2026, 1, 1)


def signed_in(tenant: Tenant | None = None, **options: Any) -> Client:
    user = user_create(email=f"{len(options)}@x.test", password="long-enough-7", tenant=tenant, **options)
    client = Client()
    client.force_login(user)
    return client


def test_from_a_price_on_a_page_to_an_invoice_as_pdf(tenant: Tenant) -> None:
    staff, member = signed_in(is_staff=True), signed_in(tenant, role=Role.BILLING, is_staff=False)
    assert "No invoices yet" in member.get("/t/acme/billing/").content.decode()
    answer: Any = staff.post("/staff/price-books/", {"name": "list"})
    assert answer["Location"] == "/staff/price-books/list/"
    price = {
        "what": "price",
        "base_model": "tiny",
        "effective_from": "2026-01-01",
        "input_nano": "1000",
        "cached_input_nano": "100",
        "output_nano": "4000",
    }
    staff.post("/staff/price-books/list/add", price)
    assert Price.objects.get().input_nano == 1000
    hour = {"what": "hosting", "kind": "gpu_hour", "nano": "7", "effective_from": "2026-01-01"}
    staff.post("/staff/price-books/list/add", hour)
    assert HostingPrice.objects.get().nano == 7
    page = staff.get("/staff/price-books/list/").content.decode()
    assert {'id="host-adapter"', 'id="host-backend"'} <= set(re.findall(r'id="host-\w+"', page))
    staff.post("/staff/price-books/list/add", hour | {"kind": "adapter_hour", "adapter": "acme/bot"})
    assert HostingPrice.objects.get(kind="adapter_hour").adapter == "acme/bot"
    staff.post("/staff/price-books/", {"name": "own"})
    staff.post("/staff/price-books/own/add", {"what": "term", "tenant": "acme", "starts": "2027-01-01"})
    assert PriceBookTerm.objects.get(tenant="acme").book == PriceBook.objects.get(name="own")
    page = staff.post(
        "/staff/price-books/list/add", {"what": "term", "tenant": "acme", "starts": "2026-01-01"}, follow=True
    ).content.decode()
    assert "would overlap price book" in page
    page = staff.post(
        "/staff/price-books/list/add", price | {"input_nano": "-5"}, follow=True
    ).content.decode()
    assert "input_nano: Ensure this value is greater than or equal to 0." in page
    UsageRollup.objects.create(
        day=JANUARY,
        tenant="acme",
        project="p",
        key_id="k1",
        adapter="",
        alias="",
        base_model="tiny",
        backend="worker",
        status="ok",
        requests=1,
        prompt_tokens=123_456,
        cached_tokens=0,
        completion_tokens=0,
    )
    credit_grant(tenant=tenant, amount_nano=10**7, starts=JANUARY, note="pilot")
    payment_record(tenant=tenant, amount_nano=10**7)
    invoice = invoice_draft(tenant="acme", month=JANUARY)
    assert "acme" in staff.get("/staff/invoices/").content.decode()
    parties_state()
    finalize, confirmed = f"/staff/invoices/{invoice.pk}/finalize", {"due_nano": invoice.due_nano}
    page = staff.post(finalize, confirmed, follow=True).content.decode()
    assert "ACME-000001 was finalized" in page
    page = staff.post(finalize, confirmed, follow=True).content.decode()
    assert "already finalized" in page
    page = member.get("/t/acme/billing/").content.decode()
    assert "ACME-000001" in page
    page = member.get(f"/t/acme/billing/invoices/{invoice.pk}/").content.decode()
    assert "$0.123456<" in page
    assert "$0.10<" in page
    assert member.get(f"/t/acme/billing/invoices/{invoice.pk}/pdf").status_code == 503
    pdf_render(InvoiceDocument, invoice.pk)
    files = {
        form: b"".join(_streamed(member.get(f"/t/acme/billing/invoices/{invoice.pk}/{form}")))
        for form in ("pdf", "csv", "json", "parquet")
    }
    assert files["pdf"].startswith(b"%PDF-")
    assert b"123456000" in files["csv"]
    assert files["parquet"].startswith(b"PAR1")
    assert member.get(f"/t/acme/billing/invoices/{invoice.pk}/exe").status_code == 404
    assert Invoice.objects.get().due_nano == 10**8


def _streamed(answer: Any) -> Any:
    assert answer.status_code == 200
    return answer.streaming_content


def test_the_notice_is_that_of_the_budget_and_period_that_are_shown(tenant: Tenant) -> None:
    member = signed_in(tenant, role=Role.BILLING, is_staff=False)
    tenant_limits_set(tenant=tenant, budget_nano=10**9)
    period, _ = budget_period("month", timezone.now())
    notice: dict[str, Any] = {"tenant": "acme", "scope": "tenant:acme", "spent_nano": 1}
    # The newest of all is of another period, the next of a budget that was lowered since.
    for month, percent, budget in ((period, 50, 10**9), (period, 100, 10**8), ("2020-01", 80, 10**9)):
        BudgetNotice.objects.create(period=month, percent=percent, budget_nano=budget, **notice)
    page = member.get("/t/acme/billing/").content.decode()
    assert f"50 % reached in {period}" in page
    assert "2020-01" not in page
    assert "100 % reached" not in page


def test_staff_have_calls_stop_at_zero_and_top_up(tenant: Tenant) -> None:
    staff, member = signed_in(is_staff=True), signed_in(tenant, role=Role.BILLING, is_staff=False)
    staff.post("/staff/tenants/acme/prepaid", {"stops": "true"})
    assert ScopeLimits.objects.get().prepaid_stop
    page = member.get("/t/acme/billing/").content.decode()
    assert "badge-danger" in page
    for wrong in ("0", "x", "-1", "1e999999", "0.0000000001"):
        form = {"amount": wrong, "once": "a" * 32}
        page = staff.post("/staff/tenants/acme/top-up", form, follow=True).content.decode()
        assert "$0.00" in page, wrong
    staff.post("/staff/tenants/acme/top-up", {"amount": "2.5"})
    assert not JournalEntry.objects.exists(), "nothing of what is wrong, or could be sent twice"
    page = staff.get("/staff/tenants/acme/").content.decode()
    (once,) = re.findall(r'name="once" value="(\w+)"', page)
    form = {"amount": "2.5", "note": "wire 1", "once": once}
    for _ in range(2):
        page = staff.post("/staff/tenants/acme/top-up", form, follow=True).content.decode()
        assert "Recorded for" in page
        assert JournalEntry.objects.count() == 1, "a form that is sent twice is booked once"
    page = staff.post("/staff/tenants/acme/top-up", {**form, "amount": "3"}, follow=True).content.decode()
    assert "was used for another request" in page
    staff.post("/staff/tenants/acme/top-up", {"amount": "0.000000001", "what": "credit", "once": "b" * 32})
    assert "$2.500000001" in staff.get("/staff/tenants/acme/").content.decode()
    page = member.get("/t/acme/billing/").content.decode()
    assert "badge-danger" not in page
    assert "$2.500000001" in page
    staff.post("/staff/tenants/acme/prepaid", {"stops": "false"})
    assert not ScopeLimits.objects.get().prepaid_stop

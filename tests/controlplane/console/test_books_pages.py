"""Pages of the books: journal, payments, what is undone, drafts; and of who reports usage from outside."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.billing.ledger.credits import payment_record
from controlplane.billing.ledger.selectors import balance, invoice_open_nano
from controlplane.billing.models import CreditGrant, Invoice, JournalEntry
from controlplane.metering.models import UsageSource
from controlplane.operations.models import TenantDeletion
from controlplane.operations.services import tenant_deletion_schedule, tenants_purge_due
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.selectors import project_get
from controlplane.tenants.services import service_account_create, user_create
from tests.controlplane.billing.test_invoices import JANUARY, finalized, priced, use

__all__ = ["priced"]
pytestmark = pytest.mark.django_db
ONCE = re.compile(r'name="once" value="([0-9a-f]+)"')


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def once(page: str) -> str:
    found = ONCE.search(page)
    assert found is not None
    return found[1]


def test_an_invoice_is_drafted_paid_and_its_payment_undone(staff: Client, priced: Tenant) -> None:
    use("2026-01-05", 123_456)
    form = {"tenant": "acme", "month": "2026-01"}
    made = staff.post("/staff/invoices/draft", form, follow=True)
    assert "Draft updated" in made.text
    draft = Invoice.objects.get()
    assert (draft.is_final, draft.month) == (False, dt.date(2026, 1, 1))
    for wrong, told in (
        ({"month": "2026-13"}, "YYYY-MM"),
        ({"month": "\u0662026-01"}, "YYYY-MM"),
        ({"month": "2999-01"}, "in the future"),
        ({"tenant": "nobody"}, "no tenant"),
    ):
        assert told in staff.post("/staff/invoices/draft", form | wrong, follow=True).text
    staff.post(f"/staff/invoices/{draft.pk}/finalize", {"due_nano": draft.due_nano})
    page = f"/staff/invoices/{draft.pk}/"
    asked, payment = invoice_open_nano(invoice=draft), f"{page}payment"
    assert asked > 0
    paying = {"once": once(staff.get(page).text), "amount": "0.01", "memo": "wire 4711"}
    for _ in range(2):
        assert "Payment recorded" in staff.post(payment, paying, follow=True).text
    assert invoice_open_nano(invoice=draft) == asked - 10**7, "one form that is sent twice, once"
    too_much = paying | {"once": once(staff.get(page).text), "amount": "999999"}
    assert "are open: record the rest as prepaid" in staff.post(payment, too_much, follow=True).text
    nothing = paying | {"once": once(staff.get(page).text), "amount": "1e9999"}
    assert "an amount such as" in staff.post(payment, nothing, follow=True).text

    entry = JournalEntry.objects.get(kind="payment")
    books = staff.get("/staff/tenants/acme/books/").text
    assert f'data-testid="reverse-{entry.number}"' in books
    assert "wire 4711" in books
    undo = {"once": f"{once(books)}", "memo": ""}
    assert "memo is required" in staff.post(f"/staff/entries/{entry.pk}/reverse", undo, follow=True).text
    undo["memo"] = "it bounced"
    for _ in range(2):
        answer = staff.post(f"/staff/entries/{entry.pk}/reverse", undo, follow=True).text
        assert f"Entry {entry.number} was reversed." in answer
    assert invoice_open_nano(invoice=draft) == asked
    assert f'data-testid="reverse-{entry.number}"' not in staff.get("/staff/tenants/acme/books/").text
    usage = JournalEntry.objects.filter(kind="usage").earliest("pk")
    refused = staff.post(f"/staff/entries/{usage.pk}/reverse", undo | {"once": "x" * 32}, follow=True)
    assert "only deposits, payments and grants" in refused.text
    assert staff.post("/staff/entries/999999/reverse", undo).status_code == 404


def test_a_tenant_reads_its_own_journal(priced: Tenant, other_tenant: Tenant) -> None:
    use("2026-01-05", 123_456)
    finalized(JANUARY)
    payment_record(tenant=priced, amount_nano=5 * 10**9, memo="<b>deposit</b>")
    payment_record(tenant=other_tenant, amount_nano=7 * 10**9, memo="not acme's")
    member = Client()
    member.force_login(
        user_create(email="b@x.test", password="long-enough-7", tenant=priced, role=Role.BILLING)
    )
    page = member.get("/t/acme/billing/journal/").text
    assert "&lt;b&gt;deposit&lt;/b&gt;" in page
    assert "<b>deposit" not in page
    assert "not acme" not in page
    assert "reverse-" not in page, "only the operator undoes"
    only = member.get("/t/acme/billing/journal/", {"kind": "deposit"}).text
    assert (only.count("<tr>"), "&lt;b&gt;deposit" in only) == (2, True)
    assert member.get("/t/acme/billing/journal/", {"kind": "'"}).text.count("<tr>") > 2, (
        "no kind is all of them"
    )
    assert member.get("/t/globex/billing/journal/").status_code == 404
    assert member.get("/staff/tenants/acme/books/").status_code == 404
    assert 'data-testid="journal-link"' in member.get("/t/acme/billing/").text


def test_a_credit_has_its_last_day(staff: Client, tenant: Tenant) -> None:
    today = timezone.now().date()
    form = {"what": "credit", "amount": "5", "note": "pilot", "expires_on": f"{today + dt.timedelta(days=9)}"}
    for wrong, told in (("x", "YYYY-MM-DD"), ("2020-01-01", "cannot be before starts")):
        sent = form | {"expires_on": wrong, "once": once(staff.get("/staff/tenants/acme/").text)}
        assert told in staff.post("/staff/tenants/acme/top-up", sent, follow=True).text
    form["once"] = once(staff.get("/staff/tenants/acme/").text)
    staff.post("/staff/tenants/acme/top-up", form)
    grant = CreditGrant.objects.get()
    assert grant.expires_on == today + dt.timedelta(days=9)
    assert balance(tenant="acme").credit == 5 * 10**9
    changed = staff.post("/staff/tenants/acme/top-up", form | {"expires_on": ""}, follow=True)
    assert "was used for another request" in changed.text
    assert CreditGrant.objects.count() == 1


def test_usage_sources_are_made_and_taken_back(staff: Client, tenant: Tenant) -> None:
    account = service_account_create(
        project=project_get(tenant=tenant, slug="default"), name="fleet", role=Role.VIEWER
    )
    page = "/staff/usage-sources/"
    assert "No sources yet" in staff.get(page).text
    form = {"tenant": "acme", "service_account": "fleet", "tenants": "globex, acme"}
    for wrong, told in (
        ({"service_account": "nobody"}, "no service account"),
        ({"tenants": ""}, "name the tenants"),
        ({"tenants": "No Slug!"}, "is not the id of a tenant"),
        ({"all": "on"}, "name the tenants"),
        ({"service_account": "x" * 64}, "no more than 63 characters"),
    ):
        refused = staff.post(page, form | wrong)
        assert (refused.status_code, told in refused.text) == (422, True), (wrong, refused.text)
    assert staff.post(page, form).status_code == 302
    source = UsageSource.objects.get()
    assert (source.service_account, source.tenants) == (account, ["acme", "globex"])
    again = staff.post(page, form)
    assert (again.status_code, "already a usage source" in again.text) == (422, True)
    assert "acme, globex" in staff.get(page).text
    staff.post(f"{page}{source.pk}/delete")
    assert not UsageSource.objects.exists()
    assert staff.post(f"{page}{source.pk}/delete").status_code == 404
    staff.post(page, form | {"tenants": "", "all": "on"})
    assert UsageSource.objects.get().tenants is None


@pytest.mark.usefixtures("graftwork")
def test_a_tenant_that_left_pays_its_last_invoice(staff: Client, priced: Tenant) -> None:
    use("2026-01-05", 123_456)
    invoice = finalized(JANUARY)
    asked = invoice_open_nano(invoice=invoice)
    tenant_deletion_schedule(tenant=priced, confirm="acme", reason="left us")
    TenantDeletion.objects.update(purge_after=timezone.now())
    assert tenants_purge_due() == 1
    paid = staff.post(
        "/api/v1/tenants/acme/payments",
        {"amount_nano": 10**7, "invoice": invoice.pk},
        content_type="application/json",
    )
    assert paid.status_code == 201, paid.text
    paying = {"once": once(staff.get(f"/staff/invoices/{invoice.pk}/").text), "amount": "0.01", "memo": ""}
    staff.post(f"/staff/invoices/{invoice.pk}/payment", paying)
    assert invoice_open_nano(invoice=invoice) == asked - 2 * 10**7
    journal = staff.get("/api/v1/tenants/acme/journal").json()["results"]
    assert [entry["kind"] for entry in journal[:2]] == ["payment", "payment"]
    undone = staff.post(
        f"/api/v1/tenants/acme/journal/{journal[0]['number']}/reversal",
        {"memo": "bounced"},
        content_type="application/json",
    )
    assert undone.status_code == 201, undone.text
    assert staff.get("/api/v1/tenants/acme/billing").json()["receivable"] == asked - 10**7
    page = staff.get("/staff/tenants/acme/books/").text
    assert f'data-testid="reverse-{journal[1]["number"]}"' in page
    assert f'data-testid="reverse-{journal[0]["number"]}"' not in page
    advance = staff.post("/api/v1/tenants/acme/payments", {"amount_nano": 1}, content_type="application/json")
    assert advance.status_code == 404, "nobody is there to use it"
    assert staff.get("/staff/tenants/nobody/books/").status_code == 404

"""A deposit that bounces after it was used: the next invoice asks for the shortfall."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from controlplane.billing.credit_notes.services import credit_note_issue
from controlplane.billing.documents.formats import document_json
from controlplane.billing.documents.pdfs import html
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.selectors import invoice_told
from controlplane.billing.invoices.services import invoice_draft, invoice_finalize, invoices_draft_due
from controlplane.billing.ledger.credits import entry_reverse, payment_record
from controlplane.billing.ledger.selectors import balance, invoice_open_nano
from controlplane.billing.models import CreditNote, Invoice, JournalEntry
from controlplane.billing.prepaid_notices import prepaid_seen
from controlplane.billing.services import price_book_create, price_set
from controlplane.billing.taxes.services import treatment_set
from controlplane.errors import ConflictError
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from tests.controlplane.billing.parties import parties_state
from tests.controlplane.billing.programs import MONTHS, event, ingest
from tests.controlplane.known import known

pytestmark = pytest.mark.django_db
CENT = 10**7
JANUARY, FEBRUARY, MARCH = MONTHS
TODAY = dt.date(2024, 4, 5)


@pytest.fixture
def bounced(tenant: Tenant, graftwork: Path, settings: Any) -> Tenant:
    """A tenant that deposited 500 cents and used 300 in January, before the bank reversed the deposit."""
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, usage_keep_days=36_500)
    known("tiny", tenants=())
    price_set(
        book=price_book_create(name="standard"),
        base_model="tiny",
        effective_from=JANUARY,
        input_nano=CENT,
        cached_input_nano=0,
        output_nano=0,
    )
    parties_state()
    deposit = payment_record(tenant=tenant, amount_nano=500 * CENT)
    ingest(event(dt.date(2024, 1, 30), 1, prompt_tokens=300))
    first = closed(JANUARY)
    assert (first.prepaid_nano, first.due_nano, first.shortfall_nano) == (300 * CENT, 0, 0)
    entry_reverse(entry=deposit, memo="the bank took it back")
    assert balance(tenant="acme").prepaid == -300 * CENT
    return tenant


def closed(month: dt.date) -> Invoice:
    return invoice_finalize(invoice=invoice_draft(tenant="acme", month=month), today=TODAY)


def test_the_next_invoice_asks_for_it_and_the_books_know_it_as_owed(bounced: Tenant) -> None:
    ingest(event(dt.date(2024, 2, 29), 2, prompt_tokens=20))
    found = closed(FEBRUARY)
    assert (found.lines_nano, found.prepaid_nano) == (20 * CENT, 0)
    assert (found.shortfall_nano, found.due_nano, found.net_nano) == (300 * CENT, 320 * CENT, 20 * CENT)
    stands = balance(tenant="acme", today=TODAY)
    assert (stands.prepaid, stands.receivable, stands.unbilled) == (0, 320 * CENT, 0)
    kinds = found.entries.order_by("number").values_list("kind", "debit", "credit", "amount_nano")
    assert list(kinds) == [
        ("shortfall", "receivable", "prepaid", 300 * CENT),
        ("invoiced", "receivable", "unbilled", 20 * CENT),
    ]
    payment_record(tenant=bounced, amount_nano=320 * CENT, invoice=found)
    assert invoice_open_nano(invoice=found) == 0
    assert closed_nothing_more(MARCH)


def closed_nothing_more(month: dt.date) -> bool:
    invoice = invoice_draft(tenant="acme", month=month)
    return (invoice.due_nano, invoice.shortfall_nano) == (0, 0)


def test_it_is_not_taxed_again(bounced: Tenant) -> None:
    treatment_set(tenant=bounced, starts=FEBRUARY, kind="taxed", label="VAT", rate_percent=Decimal(19))
    ingest(event(dt.date(2024, 2, 29), 2, prompt_tokens=100))
    found = closed(FEBRUARY)
    assert (found.net_nano, found.tax_nano) == (100 * CENT, 19 * CENT)
    assert found.due_nano == (100 + 19 + 300) * CENT


def test_who_uses_nothing_any_more_gets_an_invoice_of_it_alone(bounced: Tenant) -> None:
    assert invoices_draft_due(today=dt.date(2024, 2, 20)) == 0, "January is invoiced, and February not over"
    assert invoices_draft_due(today=TODAY) == 1
    assert invoices_draft_due(today=TODAY) == 1, "it is the same draft"
    found = Invoice.objects.get(status="draft")
    assert (found.month, found.due_nano, found.lines.count()) == (MARCH, 300 * CENT, 0)
    final = invoice_finalize(invoice=found, today=TODAY)
    assert balance(tenant="acme", today=TODAY).receivable == 300 * CENT
    assert invoices_draft_due(today=dt.date(2024, 5, 2)) == 0
    document = html(InvoiceDocument(final))
    assert "Reversed prepayment" in document
    assert "$3.00" in document
    assert json.loads(document_json(InvoiceDocument(final)))["shortfall_nano"] == 300 * CENT
    assert invoice_told(final)["shortfall"] == "3.00"


def test_a_deposit_that_comes_before_fills_it_and_a_draft_follows(bounced: Tenant) -> None:
    assert invoice_draft(tenant="acme", month=MARCH).due_nano == 300 * CENT
    payment_record(tenant=bounced, amount_nano=299 * CENT + 1)
    # An amount below one minor unit stays on the balance.
    assert invoice_draft(tenant="acme", month=MARCH).shortfall_nano == 0
    assert balance(tenant="acme").prepaid == -CENT + 1
    assert invoices_draft_due(today=TODAY) == 1
    Invoice.objects.filter(status="draft").delete()
    assert invoices_draft_due(today=TODAY) == 0


def test_a_credit_note_takes_back_usage_and_no_shortfall(bounced: Tenant) -> None:
    ingest(event(dt.date(2024, 2, 29), 2, prompt_tokens=20))
    found = closed(FEBRUARY)
    with pytest.raises(ConflictError, match="can still be credited"):
        credit_note_issue(invoice=found, reason="other", amount_nano=21 * CENT)
    with pytest.raises(IntegrityError, match="cannot exceed the amount of the invoice"), transaction.atomic():
        CreditNote.objects.create(
            tenant="acme",
            number=1,
            invoice=found,
            currency="USD",
            net_nano=21 * CENT,
            tax_nano=0,
            pre_payment_nano=21 * CENT,
            post_payment_nano=0,
            issued_at=timezone.now(),
        )
    note = credit_note_issue(invoice=found, reason="other")
    assert (note.net_nano, note.pre_payment_nano, note.post_payment_nano) == (20 * CENT, 20 * CENT, 0)
    assert invoice_open_nano(invoice=found) == 300 * CENT


def test_asking_for_it_is_no_top_up(bounced: Tenant) -> None:
    before = prepaid_seen(tenant="acme", today=TODAY)
    closed(MARCH)
    assert JournalEntry.objects.filter(kind="shortfall").exists()
    assert prepaid_seen(tenant="acme", today=TODAY).top_ups == before.top_ups


def test_rest_and_pages_tell_it(bounced: Tenant) -> None:
    member, staff = Client(), Client()
    member.force_login(
        user_create(email="m@x.test", password="long-enough-7", tenant=bounced, role=Role.BILLING)
    )
    staff.force_login(user_create(email="s@x.test", password="long-enough-7", is_staff=True))
    assert "includes the negative balance" in member.get("/t/acme/billing/").content.decode()
    found = closed(MARCH)
    assert "includes the negative balance" not in member.get("/t/acme/billing/").content.decode()
    told = member.get(f"/api/v1/invoices/{found.pk}").json()
    assert (told["shortfall_nano"], told["due_nano"]) == (300 * CENT, 300 * CENT)
    page = member.get(f"/t/acme/billing/invoices/{found.pk}/").content.decode()
    assert 'data-testid="invoice-shortfall">$3.00' in page
    page = staff.get(f"/staff/invoices/{found.pk}/").content.decode()
    assert 'data-testid="staff-invoice-shortfall">$3.00' in page

"""Reversals: voided credit notes, and payments and deposits that bounce."""

from __future__ import annotations

import csv
import io
import json

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from controlplane.billing.credit_notes.document import CreditNoteDocument
from controlplane.billing.credit_notes.selectors import left_of
from controlplane.billing.credit_notes.services import credit_note_void
from controlplane.billing.documents.pdfs import html
from controlplane.billing.ledger.credits import entry_reverse, payment_record
from controlplane.billing.ledger.selectors import balance, balances, invoice_open_nano
from controlplane.billing.models import Account, CreditNote, JournalEntry
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.webhooks.models import WebhookEvent
from controlplane.webhooks.services import endpoint_create
from tests.controlplane.billing.test_credit_notes import _file, _signed_in, give
from tests.controlplane.billing.test_invoices import CENT, FEBRUARY, JANUARY, MARCH, finalized, priced, use
from tests.controlplane.billing.test_taxes import vat

__all__ = ["priced"]
pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("given", ["balance", "refund", "credit"])
def test_a_payment_that_was_given_back_and_bounces_is_no_cash(priced: Tenant, given: str) -> None:
    """A bounced payment is removed from where a credit note put it, and the tenant owes it again."""
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    paid = payment_record(tenant=priced, amount_nano=10 * CENT, invoice=invoice)
    give(invoice, amount_nano=7 * CENT, post_payment_as=given)
    entry_reverse(entry=paid, memo="bounced")
    accounts = balances(tenant="acme")
    left = {"balance": "prepaid", "credit": "credit", "refund": "cash"}[given]
    assert {name: nano for name in ("cash", "prepaid", "credit") if (nano := accounts.get(name, 0))} == {  # type: ignore[call-overload]
        left: -7 * CENT
    }
    assert invoice_open_nano(invoice=invoice) == accounts[Account.RECEIVABLE] == 10 * CENT
    # The rest of the credit reduces the amount owed: nothing is paid out twice.
    assert give(invoice).pre_payment_nano == 3 * CENT
    assert sum(balances(tenant="acme").values()) == 0


def test_a_deposit_that_is_used_and_bounces_is_asked_for_by_the_next_invoice(priced: Tenant) -> None:
    first = payment_record(tenant=priced, amount_nano=10 * CENT)
    use("2026-01-05", 80_000)
    finalized(JANUARY)
    entry_reverse(entry=first, memo="the bank took it back")
    accounts = balances(tenant="acme")
    assert (accounts[Account.CASH], accounts[Account.PREPAID]) == (0, 8 * CENT)
    assert balance(tenant="acme").available == -8 * CENT
    use("2026-02-05", 10_000)
    second = finalized(FEBRUARY, today=MARCH)
    assert (second.prepaid_nano, second.shortfall_nano, second.due_nano) == (0, 8 * CENT, 9 * CENT)
    payment_record(tenant=priced, amount_nano=9 * CENT, invoice=second)
    stands = balance(tenant="acme")
    assert (stands.prepaid, stands.receivable, stands.available) == (0, 0, 0)
    with pytest.raises(ConflictError, match="already reversed"):
        entry_reverse(entry=first, memo="again")


@pytest.mark.parametrize("given", ["balance", "refund", "credit"])
def test_a_note_is_voided_by_another_and_the_books_are_as_before_it(priced: Tenant, given: str) -> None:
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    payment_record(tenant=priced, amount_nano=6 * CENT, invoice=invoice)
    before = balances(tenant="acme")
    note = give(invoice, lines={1: 7 * CENT}, post_payment_as=given)
    void = credit_note_void(credit_note=note, memo="meant another invoice")
    after = balances(tenant="acme")
    assert {name: nano for name, nano in after.items() if nano} == {k: v for k, v in before.items() if v}
    assert (void.title, void.voids, note.voided_by) == ("ACME-CN000002", note, void)
    assert (void.net_nano, void.pre_payment_nano) == (note.net_nano, note.pre_payment_nano)
    assert (left_of(invoice=invoice).net, invoice_open_nano(invoice=invoice)) == (10 * CENT, 4 * CENT)
    assert [line.amount_nano for line in void.lines.all()] == [7 * CENT]
    reversals = JournalEntry.objects.filter(credit_note=void)
    assert {entry.kind for entry in reversals} == {"reversal"}
    assert {entry.reverses_id for entry in reversals} == set(
        JournalEntry.objects.filter(credit_note=note).values_list("pk", flat=True)
    )
    for again, text in ((note, "already voided by ACME-CN000002"), (void, "issue a new credit note")):
        with pytest.raises(ConflictError, match=text):
            credit_note_void(credit_note=again, memo="again")
    # The whole invoice, its line included, can be credited again, under the next number.
    assert give(invoice, lines={1: None}).title == "ACME-CN000003"
    assert left_of(invoice=invoice).net == 0


def test_what_a_note_gave_and_is_used_is_not_taken_back(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    payment_record(tenant=priced, amount_nano=10 * CENT, invoice=invoice)
    note = give(invoice, amount_nano=7 * CENT)
    other = give(invoice, amount_nano=2 * CENT, post_payment_as="credit")
    use("2026-02-05", 30_000)
    finalized(FEBRUARY, today=MARCH)
    with pytest.raises(ConflictError, match=f"granted, only {4 * CENT} are unused"):
        credit_note_void(credit_note=note, memo="x")
    with pytest.raises(InvalidInputError, match="memo is required"):
        credit_note_void(credit_note=other, memo=" ")
    with pytest.raises(InvalidInputError, match="501 characters; the maximum is 500"):
        credit_note_void(credit_note=other, memo="x" * 501)
    credit_note_void(credit_note=other, memo="x")
    assert balance(tenant="acme").credit == 0


def test_a_note_that_gave_nothing_is_voided_whatever_became_of_what_was_prepaid(priced: Tenant) -> None:
    deposit = payment_record(tenant=priced, amount_nano=4 * CENT)
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    entry_reverse(entry=deposit, memo="bounced")
    note = give(invoice, amount_nano=5 * CENT)
    assert (note.post_payment_nano, balance(tenant="acme").prepaid) == (0, -4 * CENT)
    credit_note_void(credit_note=note, memo="meant another invoice")
    assert invoice_open_nano(invoice=invoice) == 6 * CENT


def test_a_voids_tax_goes_back_with_it_and_later_notes_still_come_to_the_unit(priced: Tenant) -> None:
    vat(priced)
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    # 2 cents of tax on 10: on the first 3 half a cent rounds up, on the next none is left.
    first, second = (give(invoice, amount_nano=3 * CENT) for _ in range(2))
    credit_note_void(credit_note=first, memo="x")
    parts = [give(invoice, amount_nano=nano) for nano in (1, CENT, None)]
    assert all(note.tax_nano >= 0 for note in parts)
    assert second.tax_nano + sum(note.tax_nano for note in parts) == invoice.tax_nano
    accounts = balances(tenant="acme")
    assert (accounts[Account.TAX], accounts[Account.RECEIVABLE]) == (0, 0)


def test_the_database_refuses_a_void_of_nothing(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    note = give(invoice, amount_nano=7 * CENT)
    row = {
        "tenant": "acme",
        "invoice": invoice,
        "reason": "other",
        "currency": "USD",
        "issued_at": note.issued_at,
        "net_nano": 7 * CENT,
        "tax_nano": 0,
        "pre_payment_nano": 7 * CENT,
        "post_payment_nano": 0,
        "post_payment_as": "balance",
    }
    for changes in (
        {"number": 2, "voids": note, "net_nano": 6 * CENT, "pre_payment_nano": 6 * CENT},
        {"number": 3, "voids": note},
        {"number": 2},
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            CreditNote.objects.create(**row | changes)
    void = CreditNote.objects.create(**row, number=2, voids=note)
    for other in (note, void):
        with pytest.raises(IntegrityError), transaction.atomic():
            CreditNote.objects.create(**row, number=3, voids=other)


def test_by_rest_its_files_and_the_operators_page(priced: Tenant) -> None:
    endpoint_create(tenant=priced, url="https://hooks.example/", events=["credit_note.voided"])
    staff, member = (
        _signed_in("s@x.test", is_staff=True),
        _signed_in("m@acme.test", tenant=priced, role=Role.BILLING),
    )
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    first, second = (give(invoice, amount_nano=CENT) for _ in range(2))
    url = f"/api/v1/fleet/credit-notes/{first.pk}"
    assert member.post(f"{url}/void", {"memo": "x"}, "application/json").status_code == 403
    assert staff.post(f"{url}/void", {}, "application/json").status_code == 400
    headers = {"Idempotency-Key": "one"}
    answers = [
        staff.post(f"{url}/void", {"memo": "wrong month"}, "application/json", headers=headers)
        for _ in range(2)
    ]
    made = answers[1].json()
    assert [answer.status_code for answer in answers] == [201, 201]
    assert (made["title"], made["voids"], made["memo"]) == ("ACME-CN000003", first.pk, "wrong month")
    assert staff.get(url).json()["voided_by"] == made["id"]
    assert staff.post(f"{url}/void", {"memo": "x"}, "application/json").status_code == 409
    path = f"/api/v1/credit-notes/{made['id']}"
    assert json.loads(_file(member, path, "json"))["voids"] == "ACME-CN000001"
    (row,) = csv.DictReader(io.StringIO(_file(member, path, "csv").decode()))
    assert row["voids"] == "ACME-CN000001"
    assert "Cancels credit note ACME-CN000001" in html(
        CreditNoteDocument(CreditNote.objects.get(pk=made["id"]))
    )
    (told,) = WebhookEvent.objects.filter(type="credit_note.voided")
    assert (told.data["title"], told.data["voids"]) == ("ACME-CN000003", first.pk)
    _by_the_pages(staff, member, second)
    for page in (
        staff.get(f"/staff/invoices/{invoice.pk}/"),
        member.get(f"/t/acme/billing/credit-notes/{first.pk}/"),
    ):
        assert "oided" in page.content.decode()


def _by_the_pages(staff: Client, member: Client, note: CreditNote) -> None:
    path = f"/staff/credit-notes/{note.pk}/"
    assert member.get(path).status_code == 404
    once = staff.get(path).content.decode().split('name="once" value="')[1].split('"')[0]
    for form, text in (
        ({"memo": "x" * 501, "once": once}, "the maximum is 500"),
        ({"memo": "x"}, "reload the page"),
        ({"memo": "twice", "once": once}, "note voided"),
        ({"memo": "twice", "once": once}, "note voided"),
    ):
        page = staff.post(f"{path}void", form, follow=True).content.decode()
        assert text in page, form
    assert "Void this credit note" not in staff.get(path).content.decode()
    (void,) = note.voidings.all()
    page = staff.get(f"/staff/credit-notes/{void.pk}/").content.decode()
    assert f"This voids credit note {note.title}" in page
    assert "Reinstated" in page

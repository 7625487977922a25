"""Credit notes: what they take back, and that they never take back more; by services, REST and pages."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from controlplane.billing.credit_notes.document import CreditNoteDocument
from controlplane.billing.credit_notes.selectors import left_of
from controlplane.billing.credit_notes.services import credit_note_issue
from controlplane.billing.documents.pdfs import pdf_render, pdfs_render_due
from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.ledger.credits import credit_grant, payment_record
from controlplane.billing.ledger.selectors import balance, balances, grants_left, invoice_open_nano
from controlplane.billing.models import (
    CreditNote,
    CreditNoteLine,
    Invoice,
    InvoiceLine,
    JournalEntry,
    LedgerHead,
    TaxTreatment,
)
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from controlplane.webhooks.models import WebhookEvent
from controlplane.webhooks.services import endpoint_create
from tests.controlplane.billing.test_invoices import CENT, FEBRUARY, JANUARY, MARCH, finalized, priced, use
from tests.controlplane.billing.test_taxes import vat

__all__ = ["priced"]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("weasyprint")]


def give(invoice: Invoice, **options: Any) -> CreditNote:
    return credit_note_issue(invoice=invoice, **{"reason": "other", **options})


def test_a_note_lowers_what_is_to_be_paid_first_and_gives_back_the_rest(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    payment_record(tenant=priced, amount_nano=7 * CENT, invoice=invoice)
    note = give(invoice, amount_nano=2 * CENT, memo="a slow week")
    assert (note.title, note.pre_payment_nano, note.post_payment_nano) == ("ACME-CN000001", 2 * CENT, 0)
    assert invoice_open_nano(invoice=invoice) == CENT
    note = give(invoice, amount_nano=3 * CENT)
    assert (note.number, note.pre_payment_nano, note.post_payment_nano) == (2, CENT, 2 * CENT)
    found = balance(tenant="acme")
    assert (found.receivable, found.prepaid, found.available) == (0, 2 * CENT, 2 * CENT)
    assert give(invoice, amount_nano=CENT, post_payment_as="refund").post_payment_nano == CENT
    give(invoice, amount_nano=CENT, post_payment_as="credit")
    assert [left for _, left in grants_left(tenant="acme")] == [CENT]
    assert balances(tenant="acme") == {
        "unbilled": 0,
        "revenue": -10 * CENT,
        "allowance": 7 * CENT,
        "receivable": 0,
        "cash": 6 * CENT,
        "prepaid": -2 * CENT,
        "credit": -CENT,
    }
    # The prepaid balance pays the next month. The credit holds from the note's date, which is later.
    use("2026-02-05", 50_000)
    second = finalized(FEBRUARY, today=MARCH)
    assert (second.credits_nano, second.prepaid_nano, second.due_nano) == (0, 2 * CENT, 3 * CENT)
    record = AuditRecord.objects.filter(action="credit_note.issue").first()
    assert record is not None


def test_of_an_invoice_that_nobody_paid_nothing_is_given_back(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    notes = [give(invoice, amount_nano=amount) for amount in (CENT // 2, 1, None)]
    assert [note.pre_payment_nano for note in notes] == [CENT // 2, 1, 10 * CENT - CENT // 2 - 1]
    assert [note.post_payment_nano for note in notes] == [0, 0, 0]
    accounts = balances(tenant="acme")
    assert (accounts.get("receivable"), accounts.get("prepaid", 0)) == (0, 0)  # type: ignore[call-overload]


def test_no_more_is_taken_back_than_was_asked_for_nor_than_a_line_has(priced: Tenant) -> None:
    use("2026-01-05", 60_000)
    use("2026-01-06", 40_000, key="k2")
    credit_grant(tenant=priced, amount_nano=3 * CENT, starts=JANUARY)
    draft = invoice_draft(tenant="acme", month=JANUARY)
    with pytest.raises(ConflictError, match="is a draft"):
        give(draft)
    invoice = finalized(JANUARY)
    with pytest.raises(ConflictError, match=rf"^{7 * CENT} nano-units"):
        give(invoice, amount_nano=7 * CENT + 1)
    with pytest.raises(ConflictError, match=f"line 1 of .* has {6 * CENT} nano-units"):
        give(invoice, lines={1: 6 * CENT + 1})
    give(invoice, lines={1: 2 * CENT})
    with pytest.raises(ConflictError, match=f"line 1 of .* has {4 * CENT} nano-units"):
        give(invoice, lines={1: 5 * CENT})
    note = give(invoice, lines={1: None, 2: CENT}, reason="duplicated_charge")
    rows = note.lines.values_list("invoice_line__position", "amount_nano")
    assert list(rows) == [(1, 4 * CENT), (2, CENT)]
    for wrong, text in (
        ({"lines": {9: None}}, "has no line 9"),
        ({"amount_nano": 0}, "above 0"),
        ({"lines": {2: -1}}, "above 0"),
        ({"reason": "whim"}, "reason must be one of"),
        ({"post_payment_as": "cake"}, "post_payment_as must be"),
        ({"lines": {2: 1}, "amount_nano": 1}, "either lines or"),
        ({"lines": {}}, "at least one line"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            give(invoice, **wrong)
    with pytest.raises(ConflictError, match=r"^0 nano-units"):
        give(invoice)
    assert LedgerHead.objects.get().credit_notes == 2, "what is refused takes no number"


def test_the_database_refuses_what_the_services_would(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    use("2026-02-05", 100_000)
    invoice, draft = finalized(JANUARY), invoice_draft(tenant="acme", month=FEBRUARY)
    note = give(invoice, lines={1: 4 * CENT})
    values: dict[str, Any] = {
        "tenant": "acme",
        "number": 2,
        "invoice": invoice,
        "reason": "other",
        "currency": "USD",
        "net_nano": CENT,
        "tax_nano": 0,
        "pre_payment_nano": CENT,
        "post_payment_nano": 0,
        "issued_at": dt.datetime.now(dt.UTC),
    }
    line = InvoiceLine.objects.get(invoice=invoice)
    lines, notes = CreditNoteLine.objects.filter(credit_note=note), CreditNote.objects.filter(pk=note.pk)

    def made(**changes: Any) -> CreditNote:
        return CreditNote.objects.create(**{**values, **changes})

    def line_of(amount: int, **changes: Any) -> CreditNoteLine:
        of = {"credit_note": note, "position": 2, "invoice_line": None, "amount_nano": amount, **changes}
        return CreditNoteLine.objects.create(**of)

    refused: list[tuple[str, Any]] = [
        ("append-only", lambda: notes.update(net_nano=1)),
        ("append-only", lambda: notes._raw_delete(notes.db)),
        ("append-only", lambda: lines.update(amount_nano=1)),
        ("append-only", lambda: lines._raw_delete(lines.db)),
        ("without gaps", lambda: made(number=3)),
        ("without gaps", lambda: made(number=1)),
        ("needs a finalized invoice", lambda: made(invoice=draft)),
        ("needs a finalized invoice", lambda: made(tenant="globex", number=1)),
        (
            "cannot exceed the amount of the invoice",
            lambda: made(net_nano=7 * CENT, pre_payment_nano=7 * CENT),
        ),
        ("cannot exceed the amount of the invoice", lambda: made(tax_nano=1, pre_payment_nano=CENT + 1)),
        ("credit_note_adds_up", lambda: made(pre_payment_nano=0)),
        ("cannot exceed its net amount", lambda: line_of(1)),
        ("cannot decrease", lambda: LedgerHead.objects.update(credit_notes=0)),
    ]
    for text, change in refused:
        with pytest.raises(IntegrityError, match=text), transaction.atomic():
            change()
    with pytest.raises(IntegrityError, match="the amount of the invoice line"), transaction.atomic():
        line_of(
            1, credit_note=made(net_nano=6 * CENT, pre_payment_nano=6 * CENT), invoice_line=draft.lines.get()
        )
    other = made(net_nano=6 * CENT, pre_payment_nano=6 * CENT)
    line_of(6 * CENT, credit_note=other, invoice_line=line)
    assert left_of(invoice=invoice).net == 0


def test_a_note_by_rest_its_files_and_who_may_read_them(priced: Tenant, other_tenant: Tenant) -> None:
    endpoint_create(tenant=priced, url="https://hooks.example/", events=["credit_note.issued"])
    vat(priced)
    use("2026-01-05", 100_000, key="=k1")
    invoice = finalized(JANUARY)
    staff, member, stranger = (
        _signed_in(email, **options)
        for email, options in (
            ("staff@x.test", {"is_staff": True}),
            ("member@acme.test", {"tenant": priced, "role": Role.BILLING}),
            ("them@globex.test", {"tenant": other_tenant, "role": Role.OWNER}),
        )
    )
    body = {"reason": "order_change", "lines": [{"position": 1, "amount_nano": 5 * CENT}]}
    url = f"/api/v1/fleet/invoices/{invoice.pk}/credit-notes"
    headers = {"Idempotency-Key": "one"}
    answers = [staff.post(url, body, "application/json", headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    made = answers[0].json()
    assert (made["total_nano"], made["tax_nano"], made["invoice_title"]) == (6 * CENT, CENT, "ACME-000001")
    assert CreditNote.objects.count() == 1
    assert member.post(url, body, "application/json").status_code == 403
    empty = staff.post(url, {"reason": "other", "lines": []}, "application/json")
    assert (empty.status_code, CreditNote.objects.count()) == (400, 1)
    twice = {**body, "lines": body["lines"] * 2}  # type: ignore[operator]
    assert staff.post(url, twice, "application/json").status_code == 400
    path = f"/api/v1/credit-notes/{made['id']}"
    assert member.get(path).json()["title"] == "ACME-CN000001"
    assert stranger.get(path).status_code == 404
    assert stranger.get(f"{path}/file?form=csv").status_code == 404
    assert member.get(f"/api/v1/credit-notes?invoice={invoice.pk}").json()["results"][0]["id"] == made["id"]
    assert member.get(f"{path}/lines").json()["results"][0]["invoice_position"] == 1
    assert member.get(f"{path}/file?form=pdf").status_code == 503
    assert pdf_render(CreditNoteDocument, made["id"])
    assert pdfs_render_due(CreditNoteDocument) == 0
    files = {form: _file(member, path, form) for form in ("csv", "json", "parquet", "pdf")}
    (row,) = csv.DictReader(io.StringIO(files["csv"].decode()))
    assert (row["key_id"], row["amount_nano"], row["invoice_position"]) == ("'=k1", str(5 * CENT), "1")
    assert json.loads(files["json"])["tax_nano"] == CENT
    assert pq.read_table(io.BytesIO(files["parquet"]))["amount"].to_pylist() == [Decimal("0.05")]
    assert files["pdf"].startswith(b"%PDF-")
    (told,) = WebhookEvent.objects.filter(type="credit_note.issued")
    assert (told.data["total"], told.data["invoice_title"]) == ("0.060000000", "ACME-000001")
    entry = JournalEntry.objects.filter(kind="credit_note").order_by("pk").first()
    assert entry is not None
    assert (entry.debit, entry.credit, entry.credit_note_id) == ("allowance", "receivable", made["id"])
    treatments = "/api/v1/tenants/acme/tax-treatments"
    later = {"starts": "2027-01-01", "kind": "taxed", "label": "VAT", "rate_percent": "20.5"}
    answer = staff.post(treatments, later, "application/json")
    assert (answer.status_code, answer.json()["rate_percent"]) == (201, "20.5000")
    assert staff.delete(f"{treatments}/{answer.json()['id']}").status_code == 204
    assert [row["starts"] for row in member.get("/api/v1/billing/tax-treatments").json()["results"]] == [
        "2026-01-01"
    ]
    assert stranger.get("/api/v1/billing/tax-treatments").json()["results"] == []


def _signed_in(email: str, **options: Any) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user_create(email=email, password="long-enough-7", **options))
    return client


def _file(client: Client, path: str, form: str) -> bytes:
    answer: Any = client.get(f"{path}/file?form={form}")
    assert answer.status_code == 200, answer.content
    return b"".join(answer.streaming_content)


def test_by_the_pages(priced: Tenant) -> None:
    staff, member = (
        _signed_in("s@x.test", is_staff=True),
        _signed_in("m@acme.test", tenant=priced, role=Role.BILLING),
    )
    form = {
        "starts": "2026-01-01",
        "kind": "taxed",
        "label": "VAT",
        "rate_percent": "19",
        "tax_number": "DE1",
    }
    for changes, text in (
        ({"starts": "soon"}, "YYYY-MM-DD"),
        ({"rate_percent": "x"}, "rate_percent: A valid number is required"),
        ({}, "saved."),
    ):
        page = staff.post("/staff/tenants/acme/tax", form | changes, follow=True).content.decode()
        assert text in page
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    page = staff.get(f"/staff/invoices/{invoice.pk}/").content.decode()
    once = page.split('name="once" value="')[1].split('"')[0]
    form = {"reason": "other", "memo": "sorry", "line": "1", "amount": "0.05", "post_payment_as": "balance"}
    for changes, text in (
        ({"once": once, "line": "x"}, "give a line number"),
        ({"once": once, "amount": "-1"}, "an amount such as"),
        ({}, "reload the page"),
        ({"once": once}, "note issued"),
        ({"once": once}, "note issued"),
    ):
        page = staff.post(
            f"/staff/invoices/{invoice.pk}/credit", form | changes, follow=True
        ).content.decode()
        assert text in page
    note = CreditNote.objects.get()
    for path in (
        "/t/acme/billing/",
        f"/t/acme/billing/invoices/{invoice.pk}/",
        f"/t/acme/billing/credit-notes/{note.pk}/",
    ):
        page = member.get(path).content.decode()
        assert "ACME-CN000001" in page, path
        assert "$0.06<" in page, path
        assert "VAT" in page, path
    assert member.get(f"/t/acme/billing/credit-notes/{note.pk}/csv").status_code == 200
    assert member.get(f"/t/acme/billing/credit-notes/{note.pk}/pdf").status_code == 503
    assert member.get(f"/t/acme/billing/credit-notes/{note.pk}/exe").status_code == 404
    treatment = TaxTreatment.objects.get()
    page = staff.post(f"/staff/tax-treatments/{treatment.pk}/remove", follow=True).content.decode()
    assert "invoices use it" in page

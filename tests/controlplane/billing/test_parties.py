"""Seller and billing details on documents are frozen when the document is finalized."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from controlplane.billing.credit_notes.document import CreditNoteDocument
from controlplane.billing.credit_notes.services import credit_note_issue
from controlplane.billing.documents.formats import document_csv, document_json, document_parquet
from controlplane.billing.documents.pdfs import html
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.models import BillingParty, CreditNote, Invoice
from controlplane.billing.parties.services import party_remove, party_set
from controlplane.billing.services import price_book_create, price_set
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from tests.controlplane.billing.parties import parties_state
from tests.controlplane.billing.test_invoices import CENT, JANUARY, finalized, use

pytestmark = pytest.mark.django_db(transaction=True)
SELLER = {
    "legal_name": "Graft & Söhne GmbH",
    "address": "Kiefernweg 1\r\n 80331 München \n",
    "tax_number": "DE811",
    "contact": "rechnung@graft.test",
    "registration": "HRB 4711",
    "payment_text": "IBAN DE02 1203",
}
BUYER = {
    "legal_name": "=Acme Ltd",
    "address": "1 Main St\nLeeds",
    "reference": "PO 77",
    "contact": "ap@acme.test",
}


@pytest.fixture
def priced(tenant: Tenant) -> Tenant:
    """`acme`, whose tokens have a price; neither it nor the seller has stated anything."""
    price_set(
        book=price_book_create(name="standard"),
        base_model="tiny",
        effective_from=JANUARY,
        input_nano=1000,
        cached_input_nano=0,
        output_nano=0,
    )
    return tenant


def test_documents_name_both_and_keep_what_they_said(priced: Tenant) -> None:
    party_set(tenant="", values=SELLER, starts=dt.date(2026, 1, 1))
    party_set(tenant="acme", values=BUYER, starts=dt.date(2026, 1, 1))
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    party_set(tenant="", values={**SELLER, "legal_name": "Graft SE"})
    note = credit_note_issue(invoice=invoice, reason="other", lines={1: 5 * CENT})
    invoice.refresh_from_db()
    assert invoice.seller == {**SELLER, "address": "Kiefernweg 1\n80331 München"}
    assert invoice.buyer == BUYER
    told = json.loads(document_json(InvoiceDocument(invoice)))
    assert (told["seller"]["tax_number"], told["buyer"]["reference"]) == ("DE811", "PO 77")
    (row,) = csv.DictReader(io.StringIO(b"".join(document_csv(InvoiceDocument(invoice))).decode()))
    assert (row["seller_name"], row["buyer_name"]) == (SELLER["legal_name"], "'=Acme Ltd")
    table = pq.read_table(io.BytesIO(document_parquet(InvoiceDocument(invoice))))
    assert table["seller_tax_number"].to_pylist() == ["DE811"]
    text = html(InvoiceDocument(invoice))
    for part in (
        "Graft &amp; Söhne GmbH",
        "Kiefernweg 1<br>80331 München",
        "Tax no. DE811",
        "HRB 4711",
        "=Acme Ltd",
        "PO 77",
        "IBAN DE02 1203",
        "rechnung@graft.test",
        "ap@acme.test",
    ):
        assert part in text, part
    # The note is of another day's seller.
    assert json.loads(document_json(CreditNoteDocument(note)))["seller"]["legal_name"] == "Graft SE"
    (row,) = csv.DictReader(io.StringIO(b"".join(document_csv(CreditNoteDocument(note))).decode()))
    assert (row["seller_name"], row["buyer_reference"]) == ("Graft SE", "PO 77")
    assert "Graft SE" in html(CreditNoteDocument(note))
    assert "=Acme Ltd" in html(CreditNoteDocument(note))


def test_no_document_is_final_without_a_seller_and_billing_details(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    staff = _signed_in("staff@x.test", is_staff=True)
    draft = invoice_draft(tenant="acme", month=JANUARY)
    path, form = f"/staff/invoices/{draft.pk}/", {"due_nano": draft.due_nano}
    page = staff.get(path).content.decode()
    assert ('data-testid="seller-missing"' in page, 'data-testid="details-missing"' in page) == (True, True)
    assert 'data-testid="finalize"' not in page
    for party, values, text in (
        ("", SELLER, "no seller details are set"),
        ("acme", BUYER, "no billing details"),
    ):
        with pytest.raises(ConflictError, match=text):
            finalized(JANUARY)
        answer = staff.post(f"/api/v1/fleet/invoices/{draft.pk}/finalize", {}, "application/json")
        assert (answer.status_code, text in answer.json()["errors"][0]["detail"]) == (409, True)
        assert text in staff.post(f"{path}finalize", form, follow=True).content.decode()
        assert not Invoice.objects.get().is_final
        party_set(tenant=party, values=values)
    assert 'data-testid="finalize"' in staff.get(path).content.decode()
    invoice = finalized(JANUARY)
    BillingParty.objects.all().delete()
    with pytest.raises(ConflictError, match="no seller details are set"):
        credit_note_issue(invoice=invoice, reason="other")
    parties_state()
    credit_note_issue(invoice=invoice, reason="other")


def test_the_amount_that_a_person_confirmed_is_the_one_that_is_due(priced: Tenant) -> None:
    parties_state()
    use("2026-01-05", 100_000)
    staff = _signed_in("staff@x.test", is_staff=True)
    draft = invoice_draft(tenant="acme", month=JANUARY)
    path = f"/staff/invoices/{draft.pk}/"
    page = staff.get(path).content.decode()
    assert "Amount due: $0.10" in page
    assert f'name="due_nano" value="{10 * CENT}"' in page
    assert "confirm the amount due" in staff.post(f"{path}finalize", follow=True).content.decode()
    use("2026-01-06", 50_000)
    shown = {"due_nano": 10 * CENT}
    assert "is now $0.15, not $0.10" in staff.post(f"{path}finalize", shown, follow=True).content.decode()
    api = f"/api/v1/fleet/invoices/{draft.pk}/finalize"
    answer = staff.post(api, shown, "application/json")
    assert (answer.status_code, "is now $0.15" in answer.json()["errors"][0]["detail"]) == (409, True)
    assert not Invoice.objects.get().is_final
    staff.post("/staff/invoices/draft", {"tenant": "acme", "month": "2026-01"})
    assert "Amount due: $0.15" in staff.get(path).content.decode()
    answer = staff.post(api, {"due_nano": 15 * CENT}, "application/json")
    assert (answer.status_code, answer.json()["due_nano"]) == (200, 15 * CENT)


def test_what_documents_say_of_them_is_refused_every_change(priced: Tenant) -> None:
    parties_state()
    party_set(tenant="", values=SELLER, starts=dt.date(2026, 1, 1))
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    note = credit_note_issue(invoice=invoice, reason="other", lines={1: CENT})
    for model, row in ((Invoice, invoice), (CreditNote, note)):
        with pytest.raises(IntegrityError), transaction.atomic():
            model.objects.filter(pk=row.pk).update(seller={"legal_name": "Somebody else"})


def test_a_draft_follows_and_what_is_planned_comes_on_its_day(priced: Tenant) -> None:
    today = timezone.now().date()
    use("2026-01-05", 100_000)
    draft = invoice_draft(tenant="acme", month=JANUARY)
    assert (draft.seller, draft.buyer) == (None, None)
    assert "<section" not in html(InvoiceDocument(draft))
    first = party_set(tenant="", values=SELLER)
    again = party_set(tenant="", values={**SELLER, "legal_name": "Graft SE"})
    planned = party_set(tenant="", values=SELLER, starts=today + dt.timedelta(days=1))
    assert (first.pk, BillingParty.objects.filter(tenant="").count()) == (again.pk, 2)
    found = invoice_draft(tenant="acme", month=JANUARY).seller
    assert found is not None
    assert found["legal_name"] == "Graft SE"
    with pytest.raises(ConflictError, match="add new ones"):
        party_remove(party=again)
    party_remove(party=planned)
    actions = AuditRecord.objects.filter(tenant="", action__startswith="billing_details").order_by("id")
    assert [row.action.rpartition(".")[2] for row in actions] == ["set", "set", "set", "remove"]


@pytest.mark.parametrize(
    ("tenant", "values", "text"),
    [
        ("", {"legal_name": "X"}, "address is required on documents"),
        ("", {"legal_name": " ", "address": "Y"}, "legal_name is required on documents"),
        ("", {"legal_name": "X" * 201, "address": "Y"}, "201 characters; the maximum is 200"),
        ("", {"legal_name": "X", "address": "Y", "reference": "1"}, "unknown field 'reference'"),
        ("acme", {"legal_name": "X", "address": "Y", "tax_number": "1"}, "unknown field 'tax_number'"),
    ],
)
def test_what_no_document_can_say_is_refused(
    tenant_row: None, tenant: str, values: dict[str, str], text: str
) -> None:
    with pytest.raises(InvalidInputError, match=text):
        party_set(tenant=tenant, values=values)
    assert not BillingParty.objects.exists()


@pytest.fixture
def tenant_row(tenant: Tenant) -> None:
    """The tenant `acme` exists."""


def test_by_rest_and_by_the_pages(priced: Tenant, other_tenant: Tenant) -> None:
    staff, member, reader, stranger = (
        _signed_in(email, **options)
        for email, options in (
            ("staff@x.test", {"is_staff": True}),
            ("m@acme.test", {"tenant": priced, "role": Role.BILLING}),
            ("v@acme.test", {"tenant": priced, "role": Role.VIEWER}),
            ("them@globex.test", {"tenant": other_tenant, "role": Role.OWNER}),
        )
    )
    api, own = "/api/v1", "/api/v1/billing/details"
    assert staff.post(f"{api}/seller", SELLER, "application/json").status_code == 201
    assert member.get(f"{api}/seller").status_code == 403
    made = member.post(own, BUYER, "application/json")
    assert (made.status_code, made.json()["starts"]) == (201, timezone.now().date().isoformat())
    unknown = member.post(own, {**BUYER, "tax_number": "1"}, "application/json")
    assert (unknown.status_code, unknown.json()["errors"][0]["attr"]) == (400, "tax_number")
    assert reader.post(own, BUYER, "application/json").status_code == 403
    assert [row["reference"] for row in member.get(own).json()["results"]] == ["PO 77"]
    assert stranger.get(own).json()["results"] == []
    later = {**BUYER, "starts": "2099-01-01", "reference": "PO 78"}
    planned = staff.post(f"{api}/tenants/acme/billing-details", later, "application/json").json()
    assert stranger.delete(f"{own}/{planned['id']}").status_code == 404
    assert member.delete(f"{own}/{planned['id']}").status_code == 204
    assert member.delete(f"{own}/{made.json()['id']}").status_code == 409
    page = staff.post("/staff/seller/", SELLER | {"legal_name": ""}).content.decode()
    assert "legal_name is required on documents" in page
    assert "Kiefernweg" in page, "what was entered is not lost"
    page = staff.post("/staff/seller/", SELLER | {"starts": "soon"}).content.decode()
    assert "YYYY-MM-DD" in page
    page = staff.post("/staff/seller/", SELLER | {"legal_name": "Graft SE"}, follow=True).content.decode()
    assert "Billing details saved" in page
    page = member.post(
        "/t/acme/billing/details", BUYER | {"reference": "PO 80"}, follow=True
    ).content.decode()
    assert "PO 80" in page
    page = staff.post(
        "/staff/tenants/acme/billing-details", {"legal_name": "Acme"}, follow=True
    ).content.decode()
    assert "address is required on documents" in page
    use("2026-01-05", 100_000)
    invoice = finalized(JANUARY)
    assert member.get(f"{api}/invoices/{invoice.pk}").json()["seller"]["legal_name"] == "Graft SE"
    for client, path in (
        (member, f"/t/acme/billing/invoices/{invoice.pk}/"),
        (staff, f"/staff/invoices/{invoice.pk}/"),
    ):
        shown = client.get(path).content.decode()
        assert "Graft SE" in shown
        assert "PO 80" in shown


def _signed_in(email: str, **options: Any) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user_create(email=email, password="long-enough-7", **options))
    return client

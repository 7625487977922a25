"""Invoices: drafts, numbered final invoices that cannot change, payments, and files."""

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

from controlplane.billing import items
from controlplane.billing.currency import minor_text, whole_minor
from controlplane.billing.documents.pdfs import html, pdf_render
from controlplane.billing.hosting_costs import hosting_costs
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.services import invoice_draft, invoice_finalize, invoices_draft_due
from controlplane.billing.ledger.credits import credit_grant, credits_expire, entry_reverse, payment_record
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.ledger.selectors import balance, balances, invoice_open_nano
from controlplane.billing.models import Account, Invoice, InvoiceLine, InvoicePdf, JournalEntry, PriceBook
from controlplane.billing.services import hosting_price_set, price_book_create, price_set
from controlplane.billing.terms import term_create, term_end
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.metering.models import HostingHour, UsageRollup
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from controlplane.webhooks.models import WebhookEvent
from controlplane.webhooks.services import endpoint_create
from tests.controlplane.billing.parties import parties_state

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("weasyprint")]
JANUARY, FEBRUARY, MARCH = (dt.date(2026, month, 1) for month in (1, 2, 3))
CENT = 10**7


def use(day: str, prompt: int, *, key: str = "k1", adapter: str = "", base: str = "tiny") -> None:
    """Add prompt tokens to the day's sums, as late usage does."""
    place = {
        "day": dt.date.fromisoformat(day),
        "tenant": "acme",
        "project": "p",
        "key_id": key,
        "adapter": adapter,
        "alias": "",
        "arm": "",
        "base_model": base,
        "backend": "worker",
        "status": "ok",
    }
    row = UsageRollup.objects.filter(**place).first() or UsageRollup(
        **place, requests=0, prompt_tokens=0, cached_tokens=0, completion_tokens=0
    )
    row.requests += 1
    row.prompt_tokens += prompt
    row.save()


@pytest.fixture
def priced(tenant: Tenant) -> Tenant:
    book = price_book_create(name="standard")
    price_set(
        book=book,
        base_model="tiny",
        effective_from=JANUARY,
        input_nano=1000,
        cached_input_nano=0,
        output_nano=0,
    )
    parties_state()
    return tenant


def finalized(month: dt.date, **options: Any) -> Invoice:
    return invoice_finalize(invoice=invoice_draft(tenant="acme", month=month), **options)


def test_what_is_less_than_a_cent_is_carried_to_the_next_invoice(priced: Tenant) -> None:
    use("2026-01-05", 123_456)
    use("2026-02-05", 7_000)
    first = finalized(JANUARY)
    assert (first.number, first.title, first.lines_nano) == (1, "ACME-000001", 123_456_000)
    assert (first.due_nano, first.carried_out_nano) == (12 * CENT, 3_456_000)
    second = finalized(FEBRUARY)
    assert (second.number, second.carried_in_nano) == (2, 3_456_000)
    assert (second.due_nano, second.carried_out_nano) == (CENT, 456_000)
    assert balances(tenant="acme") == {"unbilled": 456_000, "receivable": 13 * CENT, "revenue": -130_456_000}
    assert whole_minor(1_999_999_999, "JPY") == 10**9
    assert minor_text(1_234 * 10**9, "KWD") == "1,234.000"


def test_late_usage_and_other_prices_stand_on_the_next_invoice_and_the_old_one_stays(priced: Tenant) -> None:
    use("2026-01-31", 100_000)
    first = finalized(JANUARY)
    use("2026-01-31", 50_000)
    use("2026-02-01", 1_000)
    again = invoice_draft(tenant="acme", month=FEBRUARY)
    # Of January nothing is looked at by itself here: the nightly task posts it.
    usage_post(tenant="acme", start=JANUARY, end=MARCH)
    again = invoice_draft(tenant="acme", month=FEBRUARY)
    lines = [(line.month, line.adjusts, line.amount_nano) for line in again.lines.select_related("invoice")]
    assert lines == [(FEBRUARY, False, 10**6), (JANUARY, True, 5 * CENT)]
    finalized(FEBRUARY)
    book = price_book_create(name="cheaper")
    price_set(
        book=book,
        base_model="tiny",
        effective_from=JANUARY,
        input_nano=400,
        cached_input_nano=0,
        output_nano=0,
    )
    term_create(book=book, tenant=priced, starts=JANUARY, ends=dt.date(2026, 1, 31))
    usage_post(tenant="acme", start=JANUARY, end=MARCH)
    third = finalized(MARCH, today=dt.date(2026, 4, 1))
    assert (third.lines_nano, third.due_nano) == (-150_000 * 600, 0)
    assert third.carried_out_nano == third.carried_in_nano - 90_000_000 < 0
    first.refresh_from_db()
    assert first.lines_nano == 10 * CENT
    assert (
        sum(line.amount_nano or 0 for line in InvoiceLine.objects.all())
        == -balances(tenant="acme")[Account.REVENUE]
    )


def test_a_finalized_invoice_is_refused_every_change_by_the_database_too(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    use("2026-02-05", 100_000)
    final = finalized(JANUARY)
    draft = invoice_draft(tenant="acme", month=FEBRUARY)
    with pytest.raises(ConflictError, match="already finalized"):
        invoice_finalize(invoice=final)
    with pytest.raises(ConflictError, match="invoiced through 2026-01"):
        invoice_draft(tenant="acme", month=JANUARY)
    rows, lines = Invoice.objects.filter(pk=final.pk), InvoiceLine.objects.filter(invoice=final)
    changes: list[Any] = [
        lambda: rows.update(due_nano=0, carried_out_nano=10 * CENT),
        lambda: rows.update(status="draft", number=None, finalized_at=None),
        lambda: rows._raw_delete(rows.db),
        lambda: lines.update(amount_nano=1),
        lambda: lines.update(invoice=draft),
        lambda: lines._raw_delete(lines.db),
        lambda: draft.lines.update(invoice=final),
        lambda: InvoiceLine.objects.create(
            invoice=final, position=99, month=JANUARY, item="input", quantity=1, per=1
        ),
    ]
    for change in changes:
        with pytest.raises(IntegrityError, match="cannot be changed"), transaction.atomic():
            change()
    # A gap, a number twice, a number without a draft.
    now = dt.datetime.now(dt.UTC)
    for number in (1, 3):
        with pytest.raises(IntegrityError), transaction.atomic():
            Invoice.objects.filter(pk=draft.pk).update(status="finalized", number=number, finalized_at=now)
    with pytest.raises(IntegrityError, match="without gaps"), transaction.atomic():
        Invoice.objects.create(
            tenant="acme",
            month=MARCH,
            currency="USD",
            drafted_at=now,
            status="finalized",
            number=2,
            finalized_at=now,
        )


def test_months_are_closed_one_after_another_and_when_they_are_over(priced: Tenant) -> None:
    use("2026-01-31", 1)
    use("2026-02-28", 1)
    february = invoice_draft(tenant="acme", month=FEBRUARY)
    with pytest.raises(ConflictError, match="has not ended"):
        invoice_finalize(invoice=february, today=dt.date(2026, 2, 28))
    usage_post(tenant="acme", start=JANUARY, end=MARCH)
    with pytest.raises(ConflictError, match="2026-01 is still open"):
        invoice_finalize(invoice=february, today=MARCH)
    assert invoices_draft_due(today=MARCH) == 2
    assert invoices_draft_due(today=dt.date(2026, 2, 28)) == 1
    with pytest.raises(InvalidInputError, match="first day"):
        invoice_draft(tenant="acme", month=dt.date(2026, 1, 2))
    assert [invoice_finalize(invoice=i, today=MARCH).number for i in Invoice.objects.order_by("month")] == [
        1,
        2,
    ]


def test_what_has_no_price_is_on_the_invoice_and_is_no_zero(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    use("2026-01-06", 77, base="unknown")
    draft = invoice_draft(tenant="acme", month=JANUARY)
    assert draft.unpriced
    unpriced = draft.lines.get(base_model="unknown")
    assert (unpriced.quantity, unpriced.unit_nano, unpriced.amount_nano) == (77, None, None)
    with pytest.raises(ConflictError, match="has no price"):
        invoice_finalize(invoice=draft)
    final = invoice_finalize(invoice=draft, allow_unpriced=True)
    assert (final.unpriced, final.lines_nano) == (True, 10 * CENT)
    assert "unpriced" in html(InvoiceDocument(final))
    price_set(
        book=PriceBook.objects.get(),
        base_model="unknown",
        effective_from=JANUARY,
        input_nano=5,
        cached_input_nano=0,
        output_nano=0,
    )
    usage_post(tenant="acme", start=JANUARY, end=MARCH)
    line = invoice_draft(tenant="acme", month=FEBRUARY).lines.select_related("invoice").get()
    assert (line.adjusts, line.amount_nano) == (True, 77 * 5)


def test_credits_pay_first_by_their_days_then_what_is_prepaid(priced: Tenant) -> None:
    use("2026-01-05", 100_000)
    use("2026-01-25", 100_000)
    short = credit_grant(
        tenant=priced, amount_nano=15 * CENT, starts=JANUARY, expires_on=dt.date(2026, 1, 10)
    )
    late = credit_grant(tenant=priced, amount_nano=3 * CENT, starts=dt.date(2026, 1, 20))
    payment_record(tenant=priced, amount_nano=4 * CENT, memo="wire 7")
    assert balance(tenant="acme", today=dt.date(2026, 1, 5)).credit == 15 * CENT
    invoice = finalized(JANUARY)
    # The short one pays the 5th alone (10 of its 15), the late one 3 of the 25th, what is prepaid 4.
    assert (invoice.credits_nano, invoice.prepaid_nano, invoice.due_nano) == (13 * CENT, 4 * CENT, 3 * CENT)
    drawn = {entry.grant_id: entry.amount_nano for entry in invoice.entries.filter(kind="credit_drawn")}
    assert drawn == {short.pk: 10 * CENT, late.pk: 3 * CENT}
    assert credits_expire() == 1
    assert credits_expire() == 0
    accounts = balances(tenant="acme")
    assert [accounts[name] for name in (Account.CREDIT, Account.PREPAID, Account.RECEIVABLE)] == [
        0,
        0,
        3 * CENT,
    ]
    assert sum(accounts.values()) == 0
    with pytest.raises(ConflictError, match="nano-units of"):
        payment_record(tenant=priced, amount_nano=4 * CENT, invoice=invoice)
    paid = payment_record(tenant=priced, amount_nano=3 * CENT, invoice=invoice)
    assert invoice_open_nano(invoice=invoice) == 0
    entry_reverse(entry=paid, memo="bounced")
    assert invoice_open_nano(invoice=invoice) == 3 * CENT
    with pytest.raises(ConflictError, match="already reversed"):
        entry_reverse(entry=paid, memo="bounced")
    with pytest.raises(ConflictError, match="is partly used"):
        entry_reverse(entry=JournalEntry.objects.get(kind="grant", grant=late), memo="mistake")
    with pytest.raises(ConflictError, match="of kind usage"):
        entry_reverse(entry=JournalEntry.objects.filter(kind="usage").first(), memo="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("amount", [0, -1, 1 << 62])
def test_amounts_that_are_none_are_refused(priced: Tenant, amount: int) -> None:
    with pytest.raises(InvalidInputError, match="positive integer"):
        payment_record(tenant=priced, amount_nano=amount)
    with pytest.raises(InvalidInputError, match="positive integer"):
        credit_grant(tenant=priced, amount_nano=amount)


def test_price_books_that_would_overlap_are_refused_naming_both(priced: Tenant) -> None:
    own = price_book_create(name="own")
    other = price_book_create(name="other")
    term = term_create(book=own, tenant=priced, starts=FEBRUARY, ends=dt.date(2026, 2, 28))
    for starts, ends in ((JANUARY, FEBRUARY), (dt.date(2026, 2, 28), None), (JANUARY, None)):
        with pytest.raises(ConflictError, match=r"'other'.*overlap.*'own'"):
            term_create(book=other, tenant=priced, starts=starts, ends=ends)
    with pytest.raises(ConflictError, match=r"'other' for everyone.*overlap.*'standard'"):
        term_create(book=other, starts=MARCH)
    after = term_create(book=other, tenant=priced, starts=MARCH)
    with pytest.raises(ConflictError, match=r"'own'.*overlap.*'other'"):
        term_end(term=term, ends=None)
    term_end(term=after, ends=dt.date(2026, 3, 2))
    with pytest.raises(ConflictError, match="in EUR, but"):
        term_create(
            book=price_book_create(name="euro", currency="EUR"), tenant=priced, starts=dt.date(2027, 1, 1)
        )
    with pytest.raises(InvalidInputError, match="ends cannot be before starts"):
        term_create(book=own, tenant=priced, starts=MARCH, ends=FEBRUARY)
    with pytest.raises(InvalidInputError, match="nano must be"):
        hosting_price_set(book=own, kind="gpu_hour", effective_from=JANUARY, nano=-1)


def test_files_hold_every_line_to_the_nano_unit(priced: Tenant) -> None:
    for index in range(30):
        use("2026-01-05", 1000 + index, key=f"k{index % 3}", adapter=f"t_acme.a_bot-{index}.v1.{'a' * 12}")
    use("2026-01-06", 5, key="=cmd()", base="unknown")
    invoice = finalized(JANUARY, allow_unpriced=True)
    assert [file_of(invoice, "csv")[:8], file_of(invoice, "json")[:1]] == [b"position", b"{"]
    rows = list(csv.DictReader(io.StringIO(file_of(invoice, "csv").decode())))
    assert sum(Decimal(row["amount"]) for row in rows if row["amount"]) * 10**9 == invoice.lines_nano
    assert [row["key_id"] for row in rows if row["unpriced"] == "true"] == ["'=cmd()"]
    whole = json.loads(file_of(invoice, "json"))
    assert (
        sum(line["amount_nano"] or 0 for line in whole["lines"]) == whole["lines_nano"] == invoice.lines_nano
    )
    table = pq.read_table(io.BytesIO(file_of(invoice, "parquet")))
    assert table.num_rows == 31
    assert sum(amount or 0 for amount in table["amount_nano"].to_pylist()) == invoice.lines_nano
    assert sum(amount or 0 for amount in table["amount"].to_pylist()) == Decimal(invoice.lines_nano).scaleb(
        -9
    )


def file_of(invoice: Invoice, form: str) -> bytes:
    """Fetch a file by REST as a billing member of the tenant, in a new session."""
    email = f"billing-{form}-{Invoice.objects.count()}-{dt.datetime.now().timestamp()}@acme.test"
    user = user_create(
        email=email, password="long-enough-7", tenant=Tenant.objects.get(pk="acme"), role=Role.BILLING
    )
    client = Client()
    client.force_login(user)
    answer: Any = client.get(f"/api/v1/invoices/{invoice.pk}/file?form={form}")
    assert answer.status_code == 200, answer.content
    return b"".join(answer.streaming_content)


def test_the_pdf_is_made_by_the_task_and_kept(priced: Tenant) -> None:
    use("2026-01-05", 123_456)
    draft = invoice_draft(tenant="acme", month=JANUARY)
    assert not pdf_render(InvoiceDocument, draft.pk)
    invoice = invoice_finalize(invoice=draft)
    assert pdf_render(InvoiceDocument, invoice.pk)
    assert not pdf_render(InvoiceDocument, invoice.pk)
    document = file_of(invoice, "pdf")
    assert document.startswith(b"%PDF-")
    assert len(document) == InvoicePdf.objects.get().size


def test_webhooks_are_told_once(priced: Tenant) -> None:
    endpoint_create(
        tenant=priced, url="https://hooks.example/", events=["invoice.drafted", "invoice.finalized"]
    )
    use("2026-01-05", 123_456)
    invoice_draft(tenant="acme", month=JANUARY)
    finalized(JANUARY)
    told = {event.type: event.data for event in WebhookEvent.objects.all()}
    assert WebhookEvent.objects.count() == 2
    assert told["invoice.finalized"]["title"] == "ACME-000001"
    assert told["invoice.finalized"]["due"] == "0.12"


def test_time_is_priced_by_the_second_and_rounded_where_it_is_said() -> None:
    assert items.amount("gpu_hour", quantity=1, unit_nano=10**9) == 277_778
    assert items.amount("gpu_hour", quantity=3600, unit_nano=10**9) == 10**9
    assert items.amount("storage_gb_hour", quantity=3600 * 10**9, unit_nano=7) == 7
    assert items.amount("adapter_hour", quantity=1800, unit_nano=1) == 1, "halves go up"


def host(kind: str, seconds: int, hour: int = 3, **more: str) -> None:
    HostingHour.objects.create(
        day=JANUARY, hour=hour, kind=kind, quantity_seconds=seconds, **{"tenant": "acme", **more}
    )


def test_hosting_time_is_posted_and_invoiced_like_tokens(priced: Tenant) -> None:
    adapter = "t_acme.a_bot.v1." + "a" * 12
    for hour in (3, 4):
        host("adapter", 3600, hour, adapter=adapter, base_model="tiny", tier="placed")
    host("adapter", 3600, adapter=adapter, base_model="tiny", tier="stored")
    host("storage", 5 * 10**9 * 3600, adapter=adapter)
    host("gpu", 3600, tenant="")
    assert not invoice_draft(tenant="acme", month=JANUARY).lines.exists(), "nothing of time is billed here"
    book = PriceBook.objects.get()
    hosting_price_set(book=book, kind="adapter_hour", effective_from=JANUARY, nano=10**6)
    hosting_price_set(
        book=book, kind="storage_gb_hour", effective_from=JANUARY, nano=7, adapter="globex/other"
    )
    draft = invoice_draft(tenant="acme", month=JANUARY)
    lines = {line.item: (line.adapter, line.quantity, line.amount_nano) for line in draft.lines.all()}
    assert lines == {
        "adapter_hour": ("bot", 7200, 2 * 10**6),
        "storage_gb_hour": ("bot", 5 * 10**9 * 3600, None),
    }, "billed to others, hence unpriced here"
    hosting_price_set(book=book, kind="storage_gb_hour", effective_from=JANUARY, nano=3)
    host("adapter", 1800, 5, adapter=adapter, base_model="tiny", tier="placed")
    final = finalized(JANUARY)
    assert (final.lines_nano, final.unpriced) == (2_500_000 + 15, False)
    costs = hosting_costs(tenant="acme", start=JANUARY, end=JANUARY)
    assert {cost.item: cost.nano for cost in costs} == {"adapter_hour": 2_500_000, "storage_gb_hour": 15}

"""Taxes are rounded once, have an account of their own, and credit notes reverse them to the unit."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.billing.credit_notes.document import CreditNoteDocument
from controlplane.billing.credit_notes.services import credit_note_issue
from controlplane.billing.documents.pdfs import html
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.ledger.credits import credit_grant, payment_record
from controlplane.billing.ledger.selectors import balance, balances
from controlplane.billing.models import CreditNote, TaxTreatment
from controlplane.billing.taxes.amounts import invoice_totals, tax_on, tax_part, usage_paid
from controlplane.billing.taxes.selectors import rate_text
from controlplane.billing.taxes.services import treatment_remove, treatment_set
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from tests.controlplane.billing.test_invoices import CENT, FEBRUARY, JANUARY, MARCH, finalized, priced, use

__all__ = ["priced"]
pytestmark = pytest.mark.django_db


def vat(tenant: Tenant, rate: str = "19", starts: dt.date = JANUARY, **more: str) -> TaxTreatment:
    return treatment_set(
        tenant=tenant, starts=starts, kind="taxed", label="VAT", rate_percent=Decimal(rate), **more
    )


def test_tax_is_on_what_is_asked_for_once_and_stands_in_an_account_of_its_own(priced: Tenant) -> None:
    vat(priced, tax_number="DE123")
    credit_grant(tenant=priced, amount_nano=2 * CENT, starts=JANUARY)
    payment_record(tenant=priced, amount_nano=5 * CENT + 3)
    assert balance(tenant="acme", today=JANUARY).available == 2 * CENT + (5 * CENT + 3) * 100 // 119
    use("2026-01-05", 123_456)
    invoice = finalized(JANUARY)
    # 0.123456 less the credit's 0.02: 0.10 net, 0.003456 is carried on untaxed; 19 % of 0.10 is 0.019: 0.02.
    assert (invoice.net_nano, invoice.tax_nano, invoice.carried_out_nano) == (10 * CENT, 2 * CENT, 3_456_000)
    assert (invoice.prepaid_nano, invoice.due_nano) == (5 * CENT, 7 * CENT)
    accounts = balances(tenant="acme")
    assert (accounts["tax"], accounts["revenue"]) == (-2 * CENT, -123_456_000)  # type: ignore[index]
    assert (accounts["unbilled"], accounts["prepaid"]) == (3_456_000, -3)  # type: ignore[index]
    document = html(InvoiceDocument(invoice))
    assert "VAT 19%" in document
    assert "VAT no. DE123" in document
    use("2026-02-05", 96_544)
    vat(priced, "8.875", starts=dt.date(2026, 2, 28))
    assert finalized(FEBRUARY, today=MARCH).tax_nano == CENT, "0.10 at 8.875 %"


def test_what_is_prepaid_is_counted_at_the_rate_that_the_next_invoice_has(priced: Tenant) -> None:
    payment_record(tenant=priced, amount_nano=119 * CENT)
    vat(priced, starts=dt.date(2026, 1, 20))
    vat(priced, "0", starts=dt.date(2026, 2, 28))

    def available(day: str) -> int:
        return balance(tenant="acme", today=dt.date.fromisoformat(day)).available

    assert available("2025-12-31") == 119 * CENT, "December is over before it starts"
    assert available("2026-01-05") == available("2026-01-31") == 100 * CENT, "January is invoiced with it"
    assert available("2026-02-01") == 119 * CENT, "nothing was used in January, and February goes by its end"
    use("2026-01-05", 500_000)
    invoice_draft(tenant="acme", month=JANUARY)
    assert available("2026-02-01") == 50 * CENT, "January is still open"
    invoice = finalized(JANUARY)
    assert (invoice.tax_nano, invoice.prepaid_nano) == (10 * CENT, 60 * CENT)
    assert available("2026-02-01") == 59 * CENT, "January is closed"


def test_rates_stand_as_people_write_them() -> None:
    for rate in ("0", "20", "100", "8.875", "0.0001"):
        assert rate_text(Decimal(rate)) == rate_text(Decimal(rate).quantize(Decimal("0.0001"))) == rate


def test_whoever_owes_no_tax_reads_why(priced: Tenant) -> None:
    treatment_set(tenant=priced, starts=JANUARY, kind="reverse_charge", label="VAT", tax_number="ATU99")
    treatment_set(tenant=priced, starts=FEBRUARY, kind="exempt", label="VAT", text="Exempt by rule 4 <b>.")
    for day in ("2026-01-05", "2026-02-05"):
        use(day, 100_000)
    first, second = finalized(JANUARY), finalized(FEBRUARY, today=MARCH)
    assert (first.tax_nano, first.due_nano, second.tax_nano) == (0, 10 * CENT, 0)
    assert "Reverse charge: the recipient is liable" in html(InvoiceDocument(first))
    assert "VAT no. ATU99" in html(InvoiceDocument(first))
    assert "Exempt by rule 4 &lt;b&gt;." in html(InvoiceDocument(second))
    note = CreditNoteDocument(credit_note_issue(invoice=first, reason="other"))
    assert "Reverse charge: the recipient is liable" in html(note)


def test_what_no_treatment_can_be_is_refused(priced: Tenant) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"kind": "none"}, "kind must be"),
        ({"label": " "}, "label is required"),
        ({"rate_percent": Decimal("100.1")}, "from 0 to 100"),
        ({"rate_percent": Decimal("NaN")}, "from 0 to 100"),
        ({"rate_percent": Decimal("1.00001")}, "four decimals"),
        ({"kind": "exempt", "rate_percent": Decimal(1)}, "omit rate_percent"),
        ({"kind": "exempt"}, "legal basis"),
        ({"kind": "reverse_charge"}, "tax_number"),
    ]
    for changes, text in wrong:
        with pytest.raises(InvalidInputError, match=text):
            treatment_set(**{"tenant": priced, "starts": JANUARY, "kind": "taxed", "label": "VAT", **changes})
    first = vat(priced)
    with pytest.raises(ConflictError, match="remove it first"):
        vat(priced)
    treatment_remove(treatment=first)
    again = vat(priced, "7")
    use("2026-01-05", 100_000)
    assert finalized(JANUARY).tax_nano == CENT, "0.7 of a cent goes up"
    with pytest.raises(ConflictError, match="invoices use it"):
        treatment_remove(treatment=again)
    with pytest.raises(ConflictError, match="2026-02-01 or later"):
        vat(priced, starts=dt.date(2026, 1, 31))
    last = vat(priced, starts=FEBRUARY)
    treatment_remove(treatment=TaxTreatment.objects.get(pk=last.pk))
    with pytest.raises(NotFoundError, match="no tax treatment"):
        treatment_remove(treatment=last)
    assert AuditRecord.objects.filter(action="tax.remove").count() == 2


@pytest.mark.parametrize("prepaid", [0, 21 * CENT + 7])
@pytest.mark.parametrize("rate", ["0", "7", "8.875", "19", "33.3333"])
def test_notes_of_a_whole_invoice_are_the_invoice_to_the_unit(
    priced: Tenant, rate: str, prepaid: int
) -> None:
    vat(priced, rate)
    if prepaid:
        payment_record(tenant=priced, amount_nano=prepaid)
    use("2026-01-05", 333_333)
    use("2026-01-06", 777_777, key="k2")
    invoice = finalized(JANUARY)
    for amount in (1, CENT // 3, *[3 * CENT + 1] * 9, 17 * CENT + 5, 1, None):
        credit_note_issue(invoice=invoice, reason="other", amount_nano=amount)
    notes = CreditNote.objects.all()
    assert sum(note.net_nano for note in notes) == invoice.net_nano
    assert sum(note.tax_nano for note in notes) == invoice.tax_nano
    assert sum(note.pre_payment_nano for note in notes) == invoice.due_nano
    assert sum(note.post_payment_nano for note in notes) == invoice.prepaid_nano
    accounts = balances(tenant="acme")
    assert accounts.get("tax", 0) == accounts["receivable"] == 0  # type: ignore[call-overload,index]
    assert accounts["allowance"] == invoice.net_nano  # type: ignore[index]
    assert sum(accounts.values()) == 0


amounts = st.one_of(
    st.integers(0, 10**15),
    st.builds(lambda cents, rest: cents * CENT + rest, st.integers(0, 10**4), st.integers(0, CENT - 1)),
)
"""Whole minor units and less besides: plain integers are mostly tiny or round."""
rates = st.integers(0, 10**6).map(lambda parts: Decimal(parts).scaleb(-4))


# 2.99 cents: 20 % of 2 is nothing, of all of it a cent.
@example(rest=29_999_999, prepaid=0, rate=Decimal(20), currency="USD")
@given(amounts, amounts, st.one_of(st.none(), rates), st.sampled_from(["USD", "JPY", "KWD"]))
def test_what_is_asked_for_adds_up(rest: int, prepaid: int, rate: Decimal | None, currency: str) -> None:
    found = invoice_totals(rest, prepaid_nano=prepaid, rate_percent=rate, currency=currency)
    minor = {"USD": 10**7, "JPY": 10**9, "KWD": 10**6}[currency]
    assert rest + found.tax == found.prepaid + found.due + found.carried_out
    assert 0 <= found.prepaid <= prepaid
    assert 0 <= found.carried_out < minor
    assert found.tax % minor == found.due % minor == 0
    net = found.prepaid + found.due - found.tax
    share = (rate or Decimal(0)) / 100
    assert abs(found.tax - net * share) * 2 <= minor
    assert not found.due or prepaid - found.prepaid < minor, "what is prepaid pays first"
    paid = usage_paid(prepaid, rate)
    assert paid + paid * share <= prepaid


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=20), rates)
def test_parts_of_a_tax_are_each_no_more_than_a_unit_off_and_add_up(parts: list[int], rate: Decimal) -> None:
    net = sum(parts)
    tax, taken, done = tax_on(net, rate, "USD"), 0, 0
    for part in parts:
        done += part
        through = tax_part(tax, part_nano=done, of_nano=net, currency="USD")
        assert through >= taken
        assert abs(through - Decimal(tax) * done / net) <= CENT
        taken = through
    assert taken == tax


def test_a_correction_below_zero_is_neither_taxed_nor_asked_for() -> None:
    found = invoice_totals(-5 * CENT, prepaid_nano=CENT, rate_percent=Decimal(19), currency="USD")
    assert (found.tax, found.prepaid, found.due, found.carried_out) == (0, 0, 0, -5 * CENT)

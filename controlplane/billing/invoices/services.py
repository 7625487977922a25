"""Drafts and finalizes invoices. Months are UTC and are closed one after another."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.billing.currency import minor_unit, money
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.lines import key_names_keep, lines_make, months_open
from controlplane.billing.invoices.selectors import invoice_told
from controlplane.billing.ledger.journal import Draft, entries_write
from controlplane.billing.ledger.posting import usage_post_held
from controlplane.billing.ledger.selectors import balances, draws, grants_left, posted_by_day
from controlplane.billing.ledger_head import head_lock
from controlplane.billing.models import (
    Account,
    CreditGrant,
    EntryKind,
    Invoice,
    InvoiceLine,
    InvoicePdf,
    LedgerHead,
)
from controlplane.billing.months import month_after, month_end, month_of
from controlplane.billing.parties.selectors import parties_check, parties_named
from controlplane.billing.price_list import PriceList
from controlplane.billing.taxes.amounts import invoice_totals
from controlplane.billing.taxes.services import treatment_copy
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import locked_snapshot, snapshot
from controlplane.platform.queue import enqueue
from controlplane.webhooks.outbox import event_emit

logger = logging.getLogger(__name__)

_Draws = list[tuple[CreditGrant, int]]


@transaction.atomic
def invoice_draft(*, tenant: str, month: dt.date) -> Invoice:
    """Creates the month's draft invoice, or updates it to the current ledger.

    Usage of that month and of the one before is posted first. The tenant's ledger head is locked until the
    transaction ends.

    Raises:
        InvalidInputError: `month` is not the first day of a month, or lies in the future.
        ConflictError: the month is closed: it was invoiced, or it was empty when a later month was invoiced.
    """
    if month.day != 1:
        raise InvalidInputError(
            "month must be the first day of a UTC month, such as 2026-11-01", field="month"
        )
    if month > timezone.now().date():
        raise InvalidInputError(
            f"{month:%Y-%m} is in the future: draft it once the month has begun", field="month"
        )
    _check_open(head := head_lock(tenant=tenant), month)
    prices = PriceList.load()
    usage_post_held(head=head, start=_late_from(month), end=month_end(month), prices=prices)
    invoice = Invoice.objects.filter(tenant=tenant, month=month).first()
    before = locked_snapshot(invoice) if invoice else None
    invoice = invoice or Invoice(tenant=tenant, month=month)
    invoice.currency, invoice.drafted_at = prices.currency(), timezone.now()
    _fill(invoice, prices)
    if before is None:
        event_emit(tenant=tenant, type="invoice.drafted", data=invoice_told(invoice))
    before, after = _without_draft_time(before), _without_draft_time(snapshot(invoice))
    audit_record(tenant=tenant, action="invoice.draft", target=invoice, before=before, after=after)
    return invoice


@transaction.atomic
def invoice_finalize(
    *,
    invoice: Invoice,
    allow_unpriced: bool = False,
    due_nano: int | None = None,
    today: dt.date | None = None,
) -> Invoice:
    """Numbers a draft, settles it with credits and the prepaid balance, and closes its month for good.

    Later usage of the month, and later price changes for it, appear on the next invoice. The tenant's ledger
    head and the invoice are locked until the transaction ends.

    Args:
        due_nano: the amount due that a person confirmed, in nano-units; None skips the comparison.

    Raises:
        ConflictError: the invoice is finalized or deleted; its month is not over, or closed; an earlier month
            is open; it has unpriced usage without `allow_unpriced`; no seller or buyer is stated; or the
            amount due differs from `due_nano`.
    """
    head = head_lock(tenant=invoice.tenant)
    # Re-read under the lock: finalizing a later month may have deleted this draft.
    found = Invoice.objects.select_for_update().filter(pk=invoice.pk).first()
    if found is None:
        raise ConflictError(f"{invoice} was empty and was deleted when a later month was closed")
    invoice = found
    if invoice.is_final:
        raise ConflictError(
            f"{invoice} is already finalized: correct it with a credit note or on the next invoice"
        )
    _check_open(head, invoice.month)
    if month_after(invoice.month) > (today or timezone.now().date()):
        raise ConflictError(f"{invoice.month:%Y-%m} has not ended: finalize it after its last day (UTC)")
    prices = PriceList.load()
    usage_post_held(head=head, start=_late_from(invoice.month), end=month_end(invoice.month), prices=prices)
    if earlier := months_open(tenant=invoice.tenant, before=invoice.month):
        raise ConflictError(f"{earlier[0]:%Y-%m} is still open: finalize that month's invoice first")
    before = snapshot(invoice)
    paid = _fill(invoice, prices)
    _check_complete(invoice, allow_unpriced=allow_unpriced, due_nano=due_nano)
    head.invoices += 1
    head.closed_through = invoice.month
    invoice.number, invoice.status = head.invoices, Invoice.Status.FINALIZED
    invoice.finalized_at = timezone.now()
    head.save(update_fields=["invoices", "closed_through"])
    invoice.save()
    entries_write(head=head, drafts=_settlement(invoice, paid), currency=invoice.currency)
    event_emit(tenant=invoice.tenant, type="invoice.finalized", data=invoice_told(invoice))
    InvoicePdf.objects.create(invoice=invoice, render_at=timezone.now())
    enqueue(InvoiceDocument.render_task, invoice_id=invoice.pk)
    _drop_empty(invoice)
    after = snapshot(invoice)
    audit_record(tenant=invoice.tenant, action="invoice.finalize", target=invoice, before=before, after=after)
    return invoice


def _late_from(month: dt.date) -> dt.date:
    """First day to post usage from: late usage of the month before goes on this invoice."""
    return month_of(month - dt.timedelta(days=1)) if month > dt.date.min else month


def invoices_draft_due(*, today: dt.date | None = None) -> int:
    """Drafts invoices for the open months that are over, or updates their drafts; returns how many.

    A failing tenant does not stop the others.
    """
    drafted = 0
    for tenant in LedgerHead.objects.order_by("tenant").values_list("tenant", flat=True):
        try:
            drafted += _draft_due(tenant, month_of(today or timezone.now().date()))
        except Exception:
            logger.exception("drafting invoices of tenant %s failed; it will be retried tomorrow", tenant)
    return drafted


def _draft_due(tenant: str, before: dt.date) -> int:
    drafts = Invoice.objects.filter(tenant=tenant, status=Invoice.Status.DRAFT, month__lt=before)
    months = {*months_open(tenant=tenant, before=before), *drafts.values_list("month", flat=True)}
    # A tenant without usage gets no usage invoice, but may still owe a prepaid shortfall.
    if not months and (month := _shortfall_month(tenant, before)):
        months.add(month)
    for month in sorted(months):
        invoice_draft(tenant=tenant, month=month)
    return len(months)


def _shortfall_month(tenant: str, before: dt.date) -> dt.date | None:
    """The last month that is over, if open and the prepaid balance is negative by a minor unit or more."""
    minor = minor_unit(PriceList.load().currency())
    if balances(tenant=tenant).get(Account.PREPAID, 0) < minor:
        return None
    month, head = month_of(before - dt.timedelta(days=1)), LedgerHead.objects.get(tenant=tenant)
    return month if head.closed_through is None or head.closed_through < month else None


def _check_open(head: LedgerHead, month: dt.date) -> None:
    if head.closed_through is not None and month <= head.closed_through:
        raise ConflictError(
            f"{head.tenant} is invoiced through {head.closed_through:%Y-%m}: late usage appears on the next "
            "invoice"
        )


def _check_complete(invoice: Invoice, *, allow_unpriced: bool, due_nano: int | None) -> None:
    if invoice.unpriced and not allow_unpriced:
        raise ConflictError(f"some usage of {invoice} has no price: set one, or finalize with allow_unpriced")
    parties_check(invoice)
    if due_nano is not None and due_nano != invoice.due_nano:
        confirmed, due = (money(nano, invoice.currency) for nano in (due_nano, invoice.due_nano))
        raise ConflictError(
            f"the amount due of {invoice} is now {due}, not {confirmed}: draft the month again and confirm "
            "the new amount"
        )


def _drop_empty(invoice: Invoice) -> None:
    """Deletes empty drafts of earlier months, which are closed with this invoice's month."""
    drafts = Invoice.objects.filter(
        tenant=invoice.tenant, status=Invoice.Status.DRAFT, month__lt=invoice.month
    )
    for empty in drafts:
        audit_record(tenant=empty.tenant, action="invoice.drop", target=empty, before=snapshot(empty))
        empty.delete()


def _fill(invoice: Invoice, prices: PriceList) -> _Draws:
    """Saves the invoice with rebuilt lines and totals; returns the credits that pay it."""
    lines = lines_make(invoice=invoice, prices=prices)
    key_names_keep(lines, tenant=invoice.tenant)
    invoice.lines_nano = sum(line.amount_nano or 0 for line in lines)
    invoice.unpriced = any(line.amount_nano is None for line in lines)
    invoice.carried_in_nano = _carried(invoice)
    days = posted_by_day(tenant=invoice.tenant, month=invoice.month)
    days[invoice.month] = days.get(invoice.month, 0) + invoice.carried_in_nano
    grants = grants_left(tenant=invoice.tenant)
    paid = list(draws(grants=grants, due_by_day=days))
    invoice.credits_nano = sum(amount for _, amount in paid)
    totals = invoice_totals(
        invoice.lines_nano + invoice.carried_in_nano - invoice.credits_nano,
        prepaid_nano=-balances(tenant=invoice.tenant).get(Account.PREPAID, 0),
        rate_percent=treatment_copy(invoice=invoice),
        currency=invoice.currency,
    )
    invoice.tax_nano, invoice.prepaid_nano = totals.tax, totals.prepaid
    invoice.shortfall_nano = totals.shortfall
    invoice.due_nano, invoice.carried_out_nano = totals.due, totals.carried_out
    parties_named(invoice, day=timezone.now().date())
    invoice.save()
    invoice.lines.all().delete()
    InvoiceLine.objects.bulk_create(lines, batch_size=1000)
    return paid


def _carried(invoice: Invoice) -> int:
    final = Invoice.objects.filter(tenant=invoice.tenant, status=Invoice.Status.FINALIZED)
    last = final.order_by("-number").first()
    return 0 if last is None else last.carried_out_nano


def _settlement(invoice: Invoice, paid: _Draws) -> list[Draft]:
    day = month_end(invoice.month)

    def draft(
        kind: EntryKind, debit: Account, credit: Account, amount: int, grant: CreditGrant | None = None
    ) -> Draft:
        return Draft(day, kind, debit, credit, amount, grant=grant, invoice=invoice)

    drafts = [
        draft(EntryKind.TAX, Account.UNBILLED, Account.TAX, invoice.tax_nano),
        *(
            draft(EntryKind.CREDIT_DRAWN, Account.CREDIT, Account.UNBILLED, amount, grant)
            for grant, amount in paid
        ),
        draft(EntryKind.PREPAID_DRAWN, Account.PREPAID, Account.UNBILLED, invoice.prepaid_nano),
        draft(EntryKind.SHORTFALL, Account.RECEIVABLE, Account.PREPAID, invoice.shortfall_nano),
        draft(
            EntryKind.INVOICED,
            Account.RECEIVABLE,
            Account.UNBILLED,
            invoice.due_nano - invoice.shortfall_nano,
        ),
    ]
    return [made for made in drafts if made.amount_nano]


def _without_draft_time(values: dict[str, Any] | None) -> dict[str, Any] | None:
    """Leave out `drafted_at`, so that redrafting to the same content is no change."""
    return None if values is None else {name: value for name, value in values.items() if name != "drafted_at"}

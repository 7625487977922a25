"""Issues credit notes, and voids them by others. They are booked when issued, and never change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from django.db import transaction
from django.utils import timezone

from controlplane.billing.credit_notes.document import CreditNoteDocument
from controlplane.billing.credit_notes.selectors import Left, credit_note_told, left_of, line_left
from controlplane.billing.currency import whole_minor
from controlplane.billing.ledger.journal import Draft, entries_write
from controlplane.billing.ledger.selectors import balances, grants_left, invoice_open_nano
from controlplane.billing.ledger_head import head_lock
from controlplane.billing.models import (
    Account,
    CreditGrant,
    CreditNote,
    CreditNoteLine,
    CreditNotePdf,
    EntryKind,
    Invoice,
    InvoiceLine,
    JournalEntry,
    LedgerHead,
)
from controlplane.billing.parties.selectors import parties_check, parties_named
from controlplane.billing.taxes.amounts import tax_part
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.lengths import checked_text
from controlplane.platform.queue import enqueue
from controlplane.tenants.limits.services import PUBLISH_BUDGETS
from controlplane.webhooks.outbox import event_emit

MEMO: Final = 500
"""Longest memo of a credit note, in characters."""
_COPIED_FIELDS: Final = (
    "tenant",
    "invoice",
    "reason",
    "currency",
    "net_nano",
    "tax_nano",
    "pre_payment_nano",
    "post_payment_nano",
    "post_payment_as",
)
"""Fields that a voiding credit note copies from the voided one."""
_POST_PAYMENT_ACCOUNTS = {
    CreditNote.PostPayment.BALANCE: Account.PREPAID,
    CreditNote.PostPayment.CREDIT: Account.CREDIT,
    CreditNote.PostPayment.REFUND: Account.CASH,
}


@transaction.atomic
def credit_note_issue(
    *,
    invoice: Invoice,
    reason: str,
    memo: str = "",
    amount_nano: int | None = None,
    lines: Mapping[int, int | None] | None = None,
    post_payment_as: str = CreditNote.PostPayment.BALANCE,
) -> CreditNote:
    """Credits part of a finalized invoice with its tax, and books it.

    The open amount of the invoice is reduced first; the rest goes where `post_payment_as` says. The tenant's
    ledger head is locked until the transaction ends.

    Args:
        amount_nano: amount on the invoice as a whole, without tax; None without `lines`: all that remains.
        lines: amounts by position, without tax; None: all that remains of the line. May not be empty.
        post_payment_as: the account of the part that was paid already: prepaid balance, credit or refund.

    Raises:
        InvalidInputError: an amount, the reason or a position is invalid, or lines and an amount are given.
        ConflictError: the invoice is a draft, or it or a line has less left to credit; or the paid part
            cannot
            be returned this way; or no seller or buyer is stated.
    """
    head = head_lock(tenant=invoice.tenant)
    invoice = Invoice.objects.get(pk=invoice.pk)
    if not invoice.is_final:
        raise ConflictError(f"{invoice} is a draft, which follows the ledger: finalize it first")
    _check(reason, post_payment_as, amount_nano, lines)
    remaining = left_of(invoice=invoice)
    parts = _parts(invoice, remaining, amount_nano, lines)
    note = _note(head, invoice, remaining, sum(part for _, part in parts))
    note.reason, note.post_payment_as = reason, post_payment_as
    note.memo = checked_text(memo, field="memo", most=MEMO)
    _check_post_payment(note, invoice)
    _save(note, parts, head)
    entries_write(head=head, drafts=list(_drafts(note, invoice)), currency=note.currency)
    _announce(note, "issue")
    return note


@transaction.atomic
def credit_note_void(*, credit_note: CreditNote, memo: str) -> CreditNote:
    """Voids a credit note in full by issuing another one with the next number.

    Each of its journal entries is reversed, and its amounts can be credited again. A voided refund counts as
    never paid, or as returned. The tenant's ledger head is locked until the transaction ends.

    Raises:
        InvalidInputError: the memo is blank or too long.
        ConflictError: the note voids another one, is voided already, the prepaid balance or credit that it
            gave is partly used, or no seller or buyer is stated.
    """
    if not memo.strip():
        raise InvalidInputError("memo is required: state the reason", field="memo")
    head = head_lock(tenant=credit_note.tenant)
    note = CreditNote.objects.select_related("invoice", "voids").get(pk=credit_note.pk)
    if note.voids is not None:
        raise ConflictError(
            f"{note.title} is itself the void of {note.voids.title}: issue a new credit note instead"
        )
    if (other := note.voided_by) is not None:
        raise ConflictError(f"{note.title} is already voided by {other.title}")
    entries = list(
        JournalEntry.objects.filter(invoice=note.invoice, credit_note=note).select_related("grant")
    )
    _check_unused(note, entries)
    void = CreditNote(
        **{name: getattr(note, name) for name in _COPIED_FIELDS},
        number=head.credit_notes + 1,
        voids=note,
        memo=checked_text(memo, field="memo", most=MEMO),
        issued_at=timezone.now(),
    )
    lines = note.lines.select_related("invoice_line").order_by("position")
    _save(void, [(line.invoice_line, line.amount_nano) for line in lines], head)
    drafts = [
        Draft(
            void.issued_at.date(),
            EntryKind.REVERSAL,
            Account(entry.credit),
            Account(entry.debit),
            entry.amount_nano,
            reverses=entry,
            grant=entry.grant,
            invoice=note.invoice,
            credit_note=void,
            memo=void.title,
        )
        for entry in entries
    ]
    entries_write(head=head, drafts=drafts, currency=void.currency)
    _announce(void, "void")
    return void


def _save(note: CreditNote, parts: list[tuple[InvoiceLine | None, int]], head: LedgerHead) -> None:
    parties_named(note, day=note.issued_at.date())
    parties_check(note)
    note.save()
    CreditNoteLine.objects.bulk_create(
        [
            CreditNoteLine(credit_note=note, position=position, invoice_line=line, amount_nano=amount)
            for position, (line, amount) in enumerate(parts, start=1)
        ],
        batch_size=1000,
    )
    head.credit_notes = note.number
    head.save(update_fields=["credit_notes"])
    CreditNotePdf.objects.create(credit_note=note, render_at=timezone.now())
    enqueue(CreditNoteDocument.render_task, credit_note_id=note.pk)


def _announce(note: CreditNote, verb: str) -> None:
    enqueue(PUBLISH_BUDGETS, tenant=note.tenant)
    kind = "credit_note.voided" if note.voids_id else "credit_note.issued"
    event_emit(tenant=note.tenant, type=kind, data=credit_note_told(note, note.invoice))
    audit_record(tenant=note.tenant, action=f"credit_note.{verb}", target=note, after=snapshot(note))


def _check_unused(note: CreditNote, entries: list[JournalEntry]) -> None:
    """Raise ConflictError unless the prepaid balance or credit that the note gave is unused."""
    left = note.post_payment_nano
    if not left:
        return  # a prepaid balance below 0 has other reasons then
    if note.post_payment_as == CreditNote.PostPayment.BALANCE:
        left = -balances(tenant=note.tenant).get(Account.PREPAID, 0)
    elif note.post_payment_as == CreditNote.PostPayment.CREDIT:
        grants = {entry.grant_id for entry in entries} - {None}
        left = sum(amount for grant, amount in grants_left(tenant=note.tenant) if grant.pk in grants)
    if left < note.post_payment_nano:
        raise ConflictError(
            f"of {note.post_payment_nano} nano-units that {note.title} granted, only {max(0, left)} are "
            "unused: used amounts cannot be reversed"
        )


def _check(
    reason: str, post_payment_as: str, amount_nano: int | None, lines: Mapping[int, int | None] | None
) -> None:
    for field, value, known in (
        ("reason", reason, CreditNote.Reason.values),
        ("post_payment_as", post_payment_as, CreditNote.PostPayment.values),
    ):
        if value not in known:
            raise InvalidInputError(f"{field} must be one of {', '.join(known)}", field=field)
    if lines is not None and not lines:
        raise InvalidInputError(
            "give at least one line, or omit lines for the invoice as a whole", field="lines"
        )
    if lines and amount_nano is not None:
        raise InvalidInputError(
            "give either lines or an amount for the invoice as a whole", field="amount_nano"
        )
    if amount_nano is not None and amount_nano <= 0:
        raise InvalidInputError("amount_nano must be above 0", field="amount_nano")
    if any(amount is not None and amount <= 0 for amount in (lines or {}).values()):
        raise InvalidInputError("the amount of a line must be above 0", field="lines")


def _parts(
    invoice: Invoice, left: Left, amount_nano: int | None, lines: Mapping[int, int | None] | None
) -> list[tuple[InvoiceLine | None, int]]:
    if lines is None:
        found: list[tuple[InvoiceLine | None, int]] = [
            (None, left.net if amount_nano is None else amount_nano)
        ]
    else:
        found = list(_lines(invoice, lines))
    total = sum(amount for _, amount in found)
    if not 0 < total <= left.net:
        raise ConflictError(
            f"{left.net} nano-units of {invoice}, without tax, can still be credited: amounts paid by "
            "credits and earlier credit notes do not count"
        )
    return found


def _lines(invoice: Invoice, amounts: Mapping[int, int | None]) -> Iterator[tuple[InvoiceLine, int]]:
    rows = {row.position: row for row in invoice.lines.filter(position__in=amounts)}
    remaining = line_left(lines=rows.values())
    for position, amount in sorted(amounts.items()):
        line = rows.get(position)
        if line is None:
            raise InvalidInputError(f"{invoice} has no line {position}", field="lines")
        available = remaining[line.pk]
        if available <= 0 or (amount or 0) > available:
            raise ConflictError(
                f"line {position} of {invoice} has {max(0, available)} nano-units left to credit"
            )
        yield line, available if amount is None else amount


def _note(head: LedgerHead, invoice: Invoice, left: Left, net: int) -> CreditNote:
    before = invoice.net_nano - left.net
    cumulated_tax = tax_part(
        invoice.tax_nano, part_nano=before + net, of_nano=invoice.net_nano, currency=invoice.currency
    )
    # Round the tax on the cumulated net, so that the last credit note leaves no remainder.
    # Negative when a voided note leaves the rounding of others behind.
    tax = max(0, cumulated_tax - (invoice.tax_nano - left.tax))
    total = net + tax
    # Keep nano-units: rounding down would return money that nobody paid.
    pre_payment = min(total, invoice_open_nano(invoice=invoice))
    return CreditNote(
        tenant=invoice.tenant,
        number=head.credit_notes + 1,
        invoice=invoice,
        currency=invoice.currency,
        net_nano=net,
        tax_nano=tax,
        pre_payment_nano=pre_payment,
        post_payment_nano=total - pre_payment,
        issued_at=timezone.now(),
    )


def _check_post_payment(note: CreditNote, invoice: Invoice) -> None:
    returned = note.post_payment_nano
    if note.post_payment_as == CreditNote.PostPayment.CREDIT and returned and invoice.tax_nano:
        raise ConflictError(
            "a credit pays usage before tax and would return more than was paid: choose balance or refund"
        )
    if note.post_payment_as == CreditNote.PostPayment.REFUND and returned != whole_minor(
        returned, note.currency
    ):
        raise ConflictError(
            f"{returned} nano-units are not a whole number of minor units and cannot be refunded: choose "
            "balance or another amount_nano"
        )


def _drafts(note: CreditNote, invoice: Invoice) -> Iterator[Draft]:
    """Yield entries for net and tax: each reduces the open amount first, the rest is returned."""
    day, grant = note.issued_at.date(), None
    account = _POST_PAYMENT_ACCOUNTS[CreditNote.PostPayment(note.post_payment_as)]
    if account == Account.CREDIT and note.post_payment_nano:
        grant = CreditGrant.objects.create(
            tenant=note.tenant,
            amount_nano=note.post_payment_nano,
            starts=day,
            note=f"credit note {note.title}",
        )
    open_nano = note.pre_payment_nano
    for debit, amount in ((Account.ALLOWANCE, note.net_nano), (Account.TAX, note.tax_nano)):
        part = min(open_nano, amount)
        open_nano -= part
        for credit, moved in ((Account.RECEIVABLE, part), (account, amount - part)):
            if moved:
                yield Draft(
                    day,
                    EntryKind.CREDIT_NOTE,
                    debit,
                    credit,
                    moved,
                    invoice=invoice,
                    credit_note=note,
                    grant=grant if credit == Account.CREDIT else None,
                    memo=note.title,
                )

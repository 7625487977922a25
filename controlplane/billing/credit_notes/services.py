"""Issues credit notes, and voids them by others. They are booked when they are made, and never change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from django.db import transaction
from django.utils import timezone

from controlplane.billing.credit_notes.rendering import RENDER_TASK
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
"""Longest note of a credit note."""
_VOIDED: Final = (
    "tenant", "invoice", "reason", "currency", "net_nano", "tax_nano", "pre_payment_nano",
    "post_payment_nano", "post_payment_as",
)  # fmt: skip
"""What a note that voids another has of it."""
_GIVEN_BACK = {
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
    """Takes back part of a finalized invoice with its tax: first off what is not paid, the rest as told.

    Args:
        amount_nano: without tax, of the invoice as a whole; None with no `lines` for all that is left of it.
        lines: by position, without tax; None for all that is left of the line. No position at all is refused.

    Raises:
        InvalidInputError: the amount, the reason or a position is none, or both kinds of amount are given.
        ConflictError: the invoice is a draft, it or a line has less left, the rest cannot be given so, or no
            seller or buyer is stated.
    """
    head = head_lock(tenant=invoice.tenant)
    invoice = Invoice.objects.get(pk=invoice.pk)
    if not invoice.is_final:
        raise ConflictError(f"{invoice} is a draft, which follows the books: finalize it first")
    _check(reason, post_payment_as, amount_nano, lines)
    left = left_of(invoice=invoice)
    parts = _parts(invoice, left, amount_nano, lines)
    note = _note(head, invoice, left, sum(part for _, part in parts))
    note.reason, note.memo, note.post_payment_as = (
        reason,
        checked_text(memo, field="memo", most=MEMO),
        post_payment_as,
    )
    _check_post_payment(note, invoice)
    _keep(note, parts, head)
    entries_write(head=head, drafts=list(_drafts(note, invoice)), currency=note.currency)
    _tell(note, "issue")
    return note


@transaction.atomic
def credit_note_void(*, credit_note: CreditNote, memo: str) -> CreditNote:
    """Takes a credit note back, whole, by another one with the next number: what it booked is reversed entry
    by entry, and what it took back can be taken back anew.

    A refund counts as never paid, or as come back.

    Raises:
        InvalidInputError: no reason is given, or a longer one than a document has room for.
        ConflictError: it voids another one, is voided already, what it gave is used by now, or no seller or
            buyer is stated.
    """
    if not memo.strip():
        raise InvalidInputError("say why, as memo", field="memo")
    head = head_lock(tenant=credit_note.tenant)
    note = CreditNote.objects.select_related("invoice", "voids").get(pk=credit_note.pk)
    if note.voids is not None:
        raise ConflictError(f"{note.title} voids {note.voids.title} itself: issue that one anew")
    if (other := note.voided_by) is not None:
        raise ConflictError(f"{note.title} is voided already, by {other.title}")
    entries = list(
        JournalEntry.objects.filter(invoice=note.invoice, credit_note=note).select_related("grant")
    )
    _check_unused(note, entries)
    void = CreditNote(
        **{name: getattr(note, name) for name in _VOIDED}, number=head.credit_notes + 1, voids=note,
        memo=checked_text(memo, field="memo", most=MEMO), issued_at=timezone.now(),
    )  # fmt: skip
    lines = note.lines.select_related("invoice_line").order_by("position")
    _keep(void, [(line.invoice_line, line.amount_nano) for line in lines], head)
    drafts = [
        Draft(
            void.issued_at.date(), EntryKind.REVERSAL, Account(entry.credit), Account(entry.debit),
            entry.amount_nano, reverses=entry, grant=entry.grant, invoice=note.invoice, credit_note=void,
            memo=void.title,
        )
        for entry in entries
    ]  # fmt: skip
    entries_write(head=head, drafts=drafts, currency=void.currency)
    _tell(void, "void")
    return void


def _keep(note: CreditNote, parts: list[tuple[InvoiceLine | None, int]], head: LedgerHead) -> None:
    """Saves a note with its lines, and that its PDF is due."""
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
    enqueue(RENDER_TASK, credit_note_id=note.pk)


def _tell(note: CreditNote, verb: str) -> None:
    enqueue(PUBLISH_BUDGETS, tenant=note.tenant)
    kind = "credit_note.voided" if note.voids_id else "credit_note.issued"
    event_emit(tenant=note.tenant, type=kind, data=credit_note_told(note, note.invoice))
    audit_record(tenant=note.tenant, action=f"credit_note.{verb}", target=note, after=snapshot(note))


def _check_unused(note: CreditNote, entries: list[JournalEntry]) -> None:
    """What it added to what is prepaid, or granted, is there to be taken back."""
    left = note.post_payment_nano
    if not left:
        return  # and what is prepaid may be below 0 for other reasons
    if note.post_payment_as == CreditNote.PostPayment.BALANCE:
        left = -balances(tenant=note.tenant).get(Account.PREPAID, 0)
    elif note.post_payment_as == CreditNote.PostPayment.CREDIT:
        grants = {entry.grant_id for entry in entries} - {None}
        left = sum(rest for grant, rest in grants_left(tenant=note.tenant) if grant.pk in grants)
    if left < note.post_payment_nano:
        raise ConflictError(
            f"of {note.post_payment_nano} nano-units that {note.title} gave only {max(0, left)} are left:"
            " what is used cannot be taken back"
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
            "name a line at least, or leave lines out for the invoice as a whole", field="lines"
        )
    if lines and amount_nano is not None:
        raise InvalidInputError("give lines, or an amount of the invoice as a whole", field="amount_nano")
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
            f"{left.net} nano-units of {invoice}, without tax, are left to take back: what credits paid of it"
            " and what was taken back before is not asked for"
        )
    return found


def _lines(invoice: Invoice, wanted: Mapping[int, int | None]) -> Iterator[tuple[InvoiceLine, int]]:
    rows = {row.position: row for row in invoice.lines.filter(position__in=wanted)}
    rest = line_left(lines=rows.values())
    for position, amount in sorted(wanted.items()):
        line = rows.get(position)
        if line is None:
            raise InvalidInputError(f"{invoice} has no line {position}", field="lines")
        has = rest[line.pk]
        if has <= 0 or (amount or 0) > has:
            raise ConflictError(
                f"line {position} of {invoice} has {max(0, has)} nano-units left to take back"
            )
        yield line, has if amount is None else amount


def _note(head: LedgerHead, invoice: Invoice, left: Left, net: int) -> CreditNote:
    before = invoice.net_nano - left.net
    through = tax_part(
        invoice.tax_nano, part_nano=before + net, of_nano=invoice.net_nano, currency=invoice.currency
    )
    # Of the sum of all so far, so that the last one takes back the rest to the unit.
    # Below 0 where a voided note leaves others' roundings behind.
    tax = max(0, through - (invoice.tax_nano - left.tax))
    total = net + tax
    # To the nano-unit: to round it down would give back money that nobody paid.
    pre_payment = min(total, invoice_open_nano(invoice=invoice))
    return CreditNote(
        tenant=invoice.tenant, number=head.credit_notes + 1, invoice=invoice, currency=invoice.currency,
        net_nano=net, tax_nano=tax, pre_payment_nano=pre_payment, post_payment_nano=total - pre_payment,
        issued_at=timezone.now(),
    )  # fmt: skip


def _check_post_payment(note: CreditNote, invoice: Invoice) -> None:
    back = note.post_payment_nano
    if note.post_payment_as == CreditNote.PostPayment.CREDIT and back and invoice.tax_nano:
        raise ConflictError(
            "a credit pays usage before tax, and gives back more than was paid: choose balance or refund"
        )
    if note.post_payment_as == CreditNote.PostPayment.REFUND and back != whole_minor(back, note.currency):
        raise ConflictError(
            f"{back} nano-units are no whole minor units, so nobody can pay them back: choose balance, or"
            " another amount_nano"
        )


def _drafts(note: CreditNote, invoice: Invoice) -> Iterator[Draft]:
    """Net and tax, each off what is open first, then to where the rest goes."""
    day, grant = note.issued_at.date(), None
    back = _GIVEN_BACK[CreditNote.PostPayment(note.post_payment_as)]
    if back == Account.CREDIT and note.post_payment_nano:
        grant = CreditGrant.objects.create(
            tenant=note.tenant,
            amount_nano=note.post_payment_nano,
            starts=day,
            note=f"credit note {note.title}",
        )
    off = note.pre_payment_nano
    for debit, amount in ((Account.ALLOWANCE, note.net_nano), (Account.TAX, note.tax_nano)):
        part = min(off, amount)
        off -= part
        for credit, moved in ((Account.RECEIVABLE, part), (back, amount - part)):
            if moved:
                yield Draft(
                    day, EntryKind.CREDIT_NOTE, debit, credit, moved, invoice=invoice, credit_note=note,
                    grant=grant if credit == Account.CREDIT else None, memo=note.title,
                )  # fmt: skip

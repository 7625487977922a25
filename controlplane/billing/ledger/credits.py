"""Credits, prepaid top-ups, payments, and reversals by hand."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection
from typing import Final

from django.db import transaction
from django.utils import timezone

from controlplane.billing.ledger.journal import MAX_NANO, Draft, entries_write
from controlplane.billing.ledger.selectors import grants_left, invoice_open_nano
from controlplane.billing.ledger_head import head_lock
from controlplane.billing.models import Account, CreditGrant, EntryKind, Invoice, JournalEntry, LedgerHead
from controlplane.billing.months import month_after
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot
from controlplane.platform.lengths import checked_text
from controlplane.platform.queue import enqueue
from controlplane.tenants.limits.services import PUBLISH_BUDGETS
from controlplane.tenants.models import Tenant

logger = logging.getLogger(__name__)

MEMO: Final = 200
"""Longest memo of an entry or note of a credit, in characters."""
_REVERSIBLE: Final = (EntryKind.DEPOSIT, EntryKind.PAYMENT, EntryKind.GRANT)


@transaction.atomic
def credit_grant(
    *,
    tenant: Tenant,
    amount_nano: int,
    starts: dt.date | None = None,
    expires_on: dt.date | None = None,
    note: str = "",
) -> CreditGrant:
    """Grants a credit, which pays usage of the UTC days `starts` (today) to `expires_on` (None: no end).

    The tenant's ledger head is locked until the transaction ends.

    Raises:
        InvalidInputError: the amount is not positive, the note too long, or it ends before it starts.
        ConflictError: all its days are in months that are invoiced already.
    """
    note = checked_text(note, field="note", most=MEMO)
    _check(amount_nano)
    starts = starts or timezone.now().date()
    if expires_on is not None and expires_on < starts:
        raise InvalidInputError("expires_on cannot be before starts", field="expires_on")
    head = head_lock(tenant=tenant.pk)
    if expires_on and head.closed_through and expires_on < month_after(head.closed_through):
        raise ConflictError(
            f"{tenant.pk} is invoiced through {head.closed_through:%Y-%m}: choose a later expires_on"
        )
    grant = CreditGrant.objects.create(
        tenant=tenant.pk, amount_nano=amount_nano, starts=starts, expires_on=expires_on, note=note
    )
    draft = Draft(
        starts, EntryKind.GRANT, Account.PROMOTION, Account.CREDIT, amount_nano, grant=grant, memo=note
    )
    entries_write(head=head, drafts=[draft])
    enqueue(PUBLISH_BUDGETS, tenant=tenant.pk)
    audit_record(tenant=tenant.pk, action="credit.grant", target=grant, after=snapshot(grant))
    return grant


@transaction.atomic
def payment_record(
    *, tenant: Tenant | str, amount_nano: int, invoice: Invoice | None = None, memo: str = ""
) -> JournalEntry:
    """Books a received payment: for a finalized invoice, or (None) as a prepaid top-up.

    The tenant's ledger head is locked until the transaction ends.

    Args:
        tenant: the tenant, or its id for an invoice of a deleted one.

    Raises:
        InvalidInputError: the amount is not positive, or the memo too long.
        ConflictError: the invoice is a draft, or its open amount is smaller.
    """
    memo = checked_text(memo, field="memo", most=MEMO)
    _check(amount_nano)
    tenant_id = tenant.pk if isinstance(tenant, Tenant) else tenant
    head = head_lock(tenant=tenant_id)
    kind, account = EntryKind.DEPOSIT, Account.PREPAID
    if invoice is not None:
        kind, account = EntryKind.PAYMENT, Account.RECEIVABLE
        if not invoice.is_final:
            raise ConflictError(f"{invoice} is a draft: finalize it first, or record the payment as prepaid")
        if amount_nano > (left := invoice_open_nano(invoice=invoice)):
            raise ConflictError(f"only {left} nano-units of {invoice} are open: record the rest as prepaid")
    today = timezone.now().date()
    draft = Draft(today, kind, Account.CASH, account, amount_nano, invoice=invoice, memo=memo)
    (entry,) = entries_write(head=head, drafts=[draft])
    # Publish budgets now, so that a tenant who topped up can call again within a second.
    enqueue(PUBLISH_BUDGETS, tenant=tenant_id)
    audit_record(tenant=tenant_id, action="payment.record", target=entry, after=snapshot(entry))
    return entry


@transaction.atomic
def entry_reverse(*, entry: JournalEntry, memo: str) -> JournalEntry:
    """Reverses a deposit, payment or grant by an entry with debit and credit swapped.

    Usage is corrected by its prices, an invoice by adjustments on the next one. Reversing a payment opens its
    invoice again, including amounts that credit notes returned. Reversing a deposit that is partly used makes
    the prepaid balance negative, until a top-up or the next invoice covers it.

    Raises:
        InvalidInputError: the memo is blank or too long.
        ConflictError: the entry is of another kind, reversed already, or a credit that is partly used.
    """
    if not memo.strip():
        raise InvalidInputError("memo is required: state the reason", field="memo")
    head = head_lock(tenant=entry.tenant)
    if entry.kind not in _REVERSIBLE:
        raise ConflictError(
            f"entry {entry.number} is of kind {entry.kind}: only deposits, payments and grants can be "
            "reversed by hand"
        )
    if JournalEntry.objects.filter(reverses=entry).exists():
        raise ConflictError(f"entry {entry.number} is already reversed")
    if entry.kind == EntryKind.GRANT and _grant_remaining(entry) < entry.amount_nano:
        raise ConflictError(f"the credit of entry {entry.number} is partly used and cannot be reversed")
    draft = Draft(
        timezone.now().date(),
        EntryKind.REVERSAL,
        Account(entry.credit),
        Account(entry.debit),
        entry.amount_nano,
        reverses=entry,
        grant=entry.grant,
        invoice=entry.invoice,
        memo=checked_text(memo, field="memo", most=MEMO),
    )
    (reversal,) = entries_write(head=head, drafts=[draft])
    enqueue(PUBLISH_BUDGETS, tenant=entry.tenant)
    audit_record(tenant=entry.tenant, action="entry.reverse", target=reversal, after=snapshot(reversal))
    return reversal


def entries_reversible(*, entries: Collection[JournalEntry]) -> set[int]:
    """Return the ids of entries whose kind `entry_reverse` accepts and that are not reversed yet."""
    found = {entry.pk for entry in entries if entry.kind in _REVERSIBLE}
    reversed_ids = JournalEntry.objects.filter(reverses__in=found).values_list("reverses_id", flat=True)
    return found - set(reversed_ids)


def _grant_remaining(entry: JournalEntry) -> int:
    return next((left for grant, left in grants_left(tenant=entry.tenant) if grant == entry.grant), 0)


def _check(amount_nano: int) -> None:
    if not 0 < amount_nano < MAX_NANO:
        raise InvalidInputError("amount_nano must be a positive integer of nano-units", field="amount_nano")


def credits_expire() -> int:
    """Books the remainder of credits as expired once all their days are invoiced; returns how many.

    Until then they can still pay usage of their days. A failing tenant does not stop the others.
    """
    expired = 0
    heads = LedgerHead.objects.exclude(closed_through=None)
    for tenant in heads.order_by("tenant").values_list("tenant", flat=True):
        try:
            expired += _expire(tenant)
        except Exception:
            logger.exception("expiring credits of tenant %s failed; it will be retried tomorrow", tenant)
    return expired


@transaction.atomic
def _expire(tenant: str) -> int:
    head = head_lock(tenant=tenant)
    assert head.closed_through is not None
    open_from = month_after(head.closed_through)
    drafts = [
        Draft(grant.expires_on, EntryKind.EXPIRY, Account.CREDIT, Account.PROMOTION, left, grant=grant)
        for grant, left in grants_left(tenant=tenant)
        if grant.expires_on is not None and grant.expires_on < open_from
    ]
    return len(entries_write(head=head, drafts=drafts))

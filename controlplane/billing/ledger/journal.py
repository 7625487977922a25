"""Writes entries to a tenant's journal, one writer at a time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from django.utils import timezone

from controlplane.billing.models import (
    Account,
    CreditGrant,
    CreditNote,
    EntryKind,
    Invoice,
    JournalEntry,
    LedgerHead,
    UsagePosting,
)
from controlplane.billing.months import month_after, month_of
from controlplane.billing.price_list import PriceList

MAX_NANO: Final = 1 << 62
"""Upper bound, exclusive, of one entry's amount: the sum of two still fits a database column."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An unsaved entry that moves `amount_nano` from account `credit` to account `debit`."""

    day: dt.date
    kind: EntryKind
    debit: Account
    credit: Account
    amount_nano: int
    reverses: JournalEntry | None = None
    grant: CreditGrant | None = None
    invoice: Invoice | None = None
    credit_note: CreditNote | None = None
    memo: str = ""
    usage: UsagePosting | None = None


_ENTRY_FIELDS: Final = tuple(field.name for field in fields(Draft) if field.name != "usage")


def entries_write(
    *, head: LedgerHead, drafts: Sequence[Draft], currency: str | None = None
) -> list[JournalEntry]:
    """Appends entries in this order, each with the usage that it was computed from.

    Args:
        head: the tenant's counters, locked by the caller; its entry number is advanced and saved.
        currency: that of the price books by default.
    """
    if not drafts:
        return []
    currency, now = currency or PriceList.load().currency(), timezone.now()
    entries = [
        JournalEntry(
            tenant=head.tenant,
            number=number,
            at=now,
            currency=currency,
            **{name: getattr(draft, name) for name in _ENTRY_FIELDS},
        )
        for number, draft in enumerate(drafts, start=head.entries + 1)
    ]
    JournalEntry.objects.bulk_create(entries, batch_size=1000)
    postings = []
    for entry, draft in zip(entries, drafts, strict=True):
        if draft.usage is not None:
            draft.usage.entry = entry
            postings.append(draft.usage)
    UsagePosting.objects.bulk_create(postings, batch_size=1000)
    head.entries += len(entries)
    head.save(update_fields=["entries"])
    return entries


def billed_month(head: LedgerHead, day: dt.date) -> dt.date:
    """Return the month whose invoice bills usage of `day`: its own, or the first open one after it."""
    month = month_of(day)
    if head.closed_through is None or head.closed_through < month:
        return month
    return month_after(head.closed_through)

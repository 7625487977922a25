"""Reads the ledger. A balance is debits less credits; liabilities and revenue are negative."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.db.models import BigIntegerField, Case, F, QuerySet, Sum, When
from django.utils import timezone

from controlplane.billing.ledger.checkpoints import balances as balances
from controlplane.billing.models import Account, CreditGrant, Invoice, JournalEntry, LedgerHead, UsagePosting
from controlplane.billing.price_list import PriceList
from controlplane.billing.taxes.amounts import usage_paid
from controlplane.billing.taxes.selectors import rate_ahead
from controlplane.platform.row_lookup import row_get
from controlplane.tenants.selectors import tenant_get


@dataclass(frozen=True, slots=True)
class Balance:
    """A tenant's balances, in nano-units of `currency`.

    Attributes:
        unbilled: usage on no finalized invoice yet, with the amount that the last one carried over.
        receivable: invoiced and not paid.
        prepaid: paid in advance and not drawn yet.
        credit: granted, valid today and not drawn yet.
        available: usage, without tax, that can still be paid from the prepaid balance and valid credits.
            Unbilled usage is deducted, after credits have paid their part as on invoices, including credits
            that ended since. Tax at `rate_ahead` is deducted from the prepaid balance. Negative when more is
            used.
    """

    tenant: str
    currency: str
    unbilled: int
    receivable: int
    prepaid: int
    credit: int
    available: int


def balance(*, tenant: str, today: dt.date | None = None, currency: str = "") -> Balance:
    """Return the tenant's balances on `today` (UTC). `currency` is read from the price books by default.

    Credits are read last: an invoice that is finalized meanwhile lowers `available` and never raises it.
    """
    accounts, day = balances(tenant=tenant), today or timezone.now().date()
    # Only credits depend on the day of usage: without any, skip summing usage by day.
    due = _open_by_day(tenant=tenant) if CreditGrant.objects.filter(tenant=tenant).exists() else {}
    grants = grants_left(tenant=tenant)
    drawn = dict(draws(grants=grants, due_by_day=due))
    held = [(grant, left) for grant, left in grants if _holds(grant, day)]
    unbilled, prepaid = accounts.get(Account.UNBILLED, 0), -accounts.get(Account.PREPAID, 0)
    paid = usage_paid(prepaid, rate_ahead(tenant=tenant, today=day))
    credit_after_draws = sum(left - drawn.get(grant, 0) for grant, left in held)
    return Balance(
        tenant,
        currency or PriceList.load().currency(),
        unbilled,
        accounts.get(Account.RECEIVABLE, 0),
        prepaid,
        sum(left for _, left in held),
        credit_after_draws + paid - (unbilled - sum(drawn.values())),
    )


def _open_by_day(*, tenant: str) -> dict[dt.date, int]:
    """Nano-units by UTC day of booked usage that is on no finalized invoice."""
    head = LedgerHead.objects.filter(tenant=tenant).first()
    rows = UsagePosting.objects.filter(tenant=tenant)
    if head is not None and head.closed_through is not None:
        rows = rows.filter(month__gt=head.closed_through)
    days = rows.order_by("day").values("day").annotate(total=Sum("amount_nano"))
    return {row["day"]: row["total"] for row in days}


def grants_left(*, tenant: str) -> list[tuple[CreditGrant, int]]:
    """Return the credits with a remaining amount, oldest first, each with its nano-units."""
    # Filter by grant: few entries of a long journal belong to one.
    entries = JournalEntry.objects.filter(grant__tenant=tenant).order_by()
    left: dict[int, int] = defaultdict(int)
    for row in entries.values("grant_id", "credit").annotate(total=Sum("amount_nano")):
        left[row["grant_id"]] += row["total"] if row["credit"] == Account.CREDIT else -row["total"]
    grants = CreditGrant.objects.in_bulk([pk for pk, amount in left.items() if amount > 0])
    return [(grants[pk], left[pk]) for pk in sorted(grants)]


def draws(
    *, grants: Iterable[tuple[CreditGrant, int]], due_by_day: dict[dt.date, int]
) -> Iterator[tuple[CreditGrant, int]]:
    """Yield the nano-units that each credit pays of usage on its days, earliest expiry first.

    Args:
        grants: as `grants_left` returns them.
        due_by_day: nano-units by UTC day; negative days reduce the others, the earliest first.
    """
    days = _netted(due_by_day)
    for grant, left in sorted(grants, key=lambda pair: (pair[0].expires_on or dt.date.max, pair[0].pk)):
        used = 0
        for day in sorted(days):
            if _holds(grant, day):
                part = min(days[day], left - used)
                days[day] -= part
                used += part
        if used:
            yield grant, used


def _netted(due_by_day: dict[dt.date, int]) -> dict[dt.date, int]:
    deduction = -sum(amount for amount in due_by_day.values() if amount < 0)
    days = {}
    for day, amount in sorted(due_by_day.items()):
        if amount > 0:
            part = min(amount, deduction)
            days[day], deduction = amount - part, deduction - part
    return days


def _holds(grant: CreditGrant, day: dt.date) -> bool:
    return grant.starts <= day and (grant.expires_on is None or day <= grant.expires_on)


def invoice_open_nano(*, invoice: Invoice) -> int:
    """Return the unpaid nano-units of a finalized invoice."""
    found = 0
    for row in (
        JournalEntry.objects.filter(invoice=invoice)
        .order_by()
        .values("debit", "credit")
        .annotate(total=Sum("amount_nano"))
    ):
        found += row["total"] * ((row["debit"] == Account.RECEIVABLE) - (row["credit"] == Account.RECEIVABLE))
    return found


def invoices_open(*, tenant: str, invoices: Iterable[Invoice]) -> dict[int, int]:
    """Map the ids of `invoices` with an open amount to their unpaid nano-units; one query."""
    ids = [invoice.pk for invoice in invoices if invoice.is_final]
    rows = JournalEntry.objects.filter(tenant=tenant, invoice__in=ids).order_by()
    found: dict[int, int] = defaultdict(int)
    for row in rows.values("invoice_id", "debit", "credit").annotate(total=Sum("amount_nano")):
        sign = (row["debit"] == Account.RECEIVABLE) - (row["credit"] == Account.RECEIVABLE)
        found[row["invoice_id"]] += row["total"] * sign
    return {pk: nano for pk, nano in found.items() if nano > 0}


def invoices_unpaid() -> dict[int, int]:
    """Map the ids of all tenants' invoices with an open amount to their unpaid nano-units; one query."""
    receivable = Case(
        When(debit=Account.RECEIVABLE, then=F("amount_nano")),
        When(credit=Account.RECEIVABLE, then=-F("amount_nano")),
        default=0,
        output_field=BigIntegerField(),
    )
    rows = JournalEntry.objects.filter(invoice__isnull=False).order_by().values("invoice_id")
    rows = rows.annotate(open=Sum(receivable)).filter(open__gt=0)
    return {row["invoice_id"]: int(row["open"]) for row in rows}


def books_of(*, slug: str) -> str:
    """Return the tenant id whose ledger `slug` names; a ledger outlives its tenant. Raises NotFoundError."""
    if not LedgerHead.objects.filter(tenant=slug).exists():
        return tenant_get(slug=slug).pk
    return slug


def entry_list(*, tenant: str, kind: str = "") -> QuerySet[JournalEntry]:
    """List the tenant's journal entries, or those of one kind, newest first."""
    entries = JournalEntry.objects.filter(tenant=tenant).select_related("usage", "invoice", "reverses")
    return (entries.filter(kind=kind) if kind else entries).order_by("-id")


def entry_get(*, tenant: str, number: int) -> JournalEntry:
    """Return the tenant's entry with this number. Raises NotFoundError."""
    rows = JournalEntry.objects.filter(tenant=tenant, number=number).select_related("grant", "invoice")
    return row_get(rows, f"tenant {tenant} has no journal entry {number}")


def entry_by_id(*, entry_id: int) -> JournalEntry:
    """Return an entry of any tenant. Raises NotFoundError."""
    rows = JournalEntry.objects.filter(pk=entry_id).select_related("grant", "invoice")
    return row_get(rows, f"there is no journal entry with id {entry_id}")


def grant_list(*, tenant: str) -> QuerySet[CreditGrant]:
    """The tenant's credits, newest first."""
    return CreditGrant.objects.filter(tenant=tenant).order_by("-id")


def posted_by_day(*, tenant: str, month: dt.date) -> dict[dt.date, int]:
    """Return nano-units by UTC day of all booked usage that the invoice of `month` bills."""
    rows = UsagePosting.objects.filter(tenant=tenant, month=month).order_by("day").values("day")
    return {row["day"]: row["total"] for row in rows.annotate(total=Sum("amount_nano"))}

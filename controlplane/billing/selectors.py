"""Reads price books, and usage with prices. Usage comes from rollups, never from single events."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Final

from django.db.models import Exists, OuterRef, QuerySet, Sum
from django.utils import timezone

from contracts.limits import budget_period
from controlplane.billing import items
from controlplane.billing.ledger.selectors import balance
from controlplane.billing.models import (
    BudgetNotice,
    HostingPrice,
    Price,
    PriceBook,
    PriceBookTerm,
    UsagePosting,
)
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import call_nano, call_price
from controlplane.metering.selectors import rollup_list, use_summed
from controlplane.platform.row_lookup import row_get
from controlplane.tenants.limits.models import ScopeLimits

_UNBOOKED_DAYS: Final = 3
"""Days whose usage is booked every few minutes; usage that arrives later is booked the next night."""
_CALL_ITEMS: Final = frozenset(items.PER) - items.TIMED


def price_book_list() -> QuerySet[PriceBook]:
    """Every price book with its terms and prices, by name."""
    return PriceBook.objects.prefetch_related("prices", "hosting_prices", "terms").order_by("name")


def price_book_get(*, name: str) -> PriceBook:
    """Return the price book of this name. Raises NotFoundError."""
    return row_get(PriceBook.objects.filter(name=name), f"there is no price book {name!r}")


def price_book_default() -> PriceBook | None:
    """Return everyone's price book, in force from today or a later day on; None without one."""
    return PriceBook.objects.filter(is_default=True).first()


def budget_notice_highest(*, limits: ScopeLimits) -> BudgetNotice | None:
    """Return the notice with the highest percentage for the current budget and period."""
    period, _ = budget_period("day" if limits.budget_period == "day" else "month", timezone.now())
    notices = BudgetNotice.objects.filter(
        scope=limits.scope, period=period, budget_nano=limits.budget_nano or 0
    )
    return notices.order_by("-percent").first()


def price_list(*, book: PriceBook) -> QuerySet[Price]:
    """The book's prices of calls, in the order in which they were added."""
    return Price.objects.filter(book=book).order_by("id")


def hosting_price_list(*, book: PriceBook) -> QuerySet[HostingPrice]:
    """The book's prices of time, in the order in which they were added."""
    return HostingPrice.objects.filter(book=book).order_by("id")


def term_list(*, book: PriceBook) -> QuerySet[PriceBookTerm]:
    """The book's terms, in the order in which they were added."""
    return PriceBookTerm.objects.filter(book=book).order_by("id")


def term_get(*, book: PriceBook, term_id: int) -> PriceBookTerm:
    """Return a term of the book by id. Raises NotFoundError."""
    rows = PriceBookTerm.objects.select_related("book").filter(book=book, pk=term_id)
    return row_get(rows, f"book {book.name!r} has no term {term_id}")


def spent_nano(
    *, tenant: str, key_id: str | None, start: dt.date, end: dt.date, prices: PriceList | None = None
) -> int:
    """Return nano-units that a tenant, or one of its keys, spent on the UTC days `start` to `end`, inclusive.

    Unpriced usage counts as 0: gateways refuse models without a price where a budget is set. Hosting time
    counts for the tenant once it is booked, and never for a key. `prices` are loaded by default.
    """
    found = calls_nano(tenant=tenant, key_id=key_id, start=start, end=end, prices=prices or PriceList.load())
    return found if key_id is not None else found + hosting_booked_nano(tenant=tenant, start=start, end=end)


def calls_nano(*, tenant: str, key_id: str | None, start: dt.date, end: dt.date, prices: PriceList) -> int:
    """Return the part of `spent_nano` for calls, from the sums of all ingested usage."""
    rollups = rollup_list(tenant=tenant, start=start, end=end)
    if key_id is not None:
        rollups = rollups.filter(key_id=key_id)
    # Sum over all columns that no price depends on.
    priced = ((use, call_price(use, prices)) for use in use_summed(rollups, by=prices.priced_by))
    return sum(call_nano(use, price) for use, price in priced if price is not None)


def hosting_booked_nano(*, tenant: str, start: dt.date, end: dt.date) -> int:
    """Return the part of `spent_nano` for hosting time, which is booked some minutes after each hour."""
    return _booked_nano(tenant, start, end, items.TIMED)


def booked_nano(*, tenants: Collection[str], month: dt.date) -> dict[str, int]:
    """Return nano-units booked for a month's invoice, by tenant; some minutes behind usage. One query.

    Args:
        month: its first day.
    """
    rows = UsagePosting.objects.filter(tenant__in=tenants, month=month).values("tenant")
    return {row["tenant"]: int(row["nano"]) for row in rows.annotate(nano=Sum("amount_nano"))}


def booked_by_day(*, start: dt.date, end: dt.date) -> list[tuple[dt.date, str, int]]:
    """Return (UTC day, tenant, nano-units) of usage booked for all tenants in the range. One query."""
    rows = UsagePosting.objects.filter(day__range=(start, end)).order_by()
    sums = rows.values_list("day", "tenant").annotate(nano=Sum("amount_nano"))
    return [(day, tenant, int(nano)) for day, tenant, nano in sums]


def budget_notice_list_reached(*, now: dt.datetime) -> QuerySet[BudgetNotice]:
    """Return the notices of tenants' budgets that are used up in the current period, newest first."""
    periods = [budget_period(kind, now)[0] for kind in ("day", "month")]
    # A raised budget makes its notice obsolete.
    own = ScopeLimits.objects.filter(
        tenant=OuterRef("tenant"), api_key=None, budget_nano=OuterRef("budget_nano")
    )
    notices = BudgetNotice.objects.filter(period__in=periods, percent__gte=100)
    return notices.filter(Exists(own), scope__startswith="tenant:").order_by("-id")


def prepaid_left_nano(*, tenant: str, today: dt.date, prices: PriceList) -> int:
    """Return the nano-units left of prepaid balance and valid credits, after usage on no invoice.

    The tenant's balances are those of `today` (UTC). The result is negative if more was used. The ledger lags
    behind usage by some minutes, so unbooked calls of the last days are deducted as well. Usage that is
    booked during the read counts twice until the next read.
    """
    start, end = today - dt.timedelta(days=_UNBOOKED_DAYS), today + dt.timedelta(days=1)
    booked = _booked_nano(tenant, start, end, _CALL_ITEMS)
    used = calls_nano(tenant=tenant, key_id=None, start=start, end=end, prices=prices)
    return balance(tenant=tenant, today=today, currency=prices.currency()).available - (used - booked)


def _booked_nano(tenant: str, start: dt.date, end: dt.date, priced_items: Collection[str]) -> int:
    rows = UsagePosting.objects.filter(tenant=tenant, day__range=(start, end), item__in=priced_items)
    return int(rows.aggregate(total=Sum("amount_nano"))["total"] or 0)

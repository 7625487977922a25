"""Usage with prices. Reads rollups only, never single events."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Final

from django.db.models import QuerySet, Sum

from controlplane.billing import items
from controlplane.billing.ledger.selectors import balance
from controlplane.billing.models import HostingPrice, Price, PriceBook, PriceBookTerm, UsagePosting
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import adapter_name, call_nano
from controlplane.errors import NotFoundError
from controlplane.metering.selectors import SummedUse, rollup_list, use_summed

_UNBOOKED_DAYS: Final = 3
"""Days whose usage is booked every few minutes; what comes later is booked the night after."""
_CALL_ITEMS: Final = frozenset(items.PER) - items.TIMED


def price_book_list() -> QuerySet[PriceBook]:
    """Every price book with its terms and prices, by name."""
    return PriceBook.objects.prefetch_related("prices", "hosting_prices", "terms").order_by("name")


def price_book_get(*, name: str) -> PriceBook:
    """Raises NotFoundError."""
    book = PriceBook.objects.filter(name=name).first()
    if book is None:
        raise NotFoundError(f"there is no price book {name!r}")
    return book


def price_book_default() -> PriceBook | None:
    """Everyone's book, from today or a later day on; None before there is one."""
    return PriceBook.objects.filter(is_default=True).first()


def price_list(*, book: PriceBook) -> QuerySet[Price]:
    """The book's prices of calls, in the order in which they were added."""
    return Price.objects.filter(book=book).order_by("id")


def hosting_price_list(*, book: PriceBook) -> QuerySet[HostingPrice]:
    """The book's prices of time, in the order in which they were added."""
    return HostingPrice.objects.filter(book=book).order_by("id")


def term_list(*, book: PriceBook) -> QuerySet[PriceBookTerm]:
    """When the book holds, and for whom."""
    return PriceBookTerm.objects.filter(book=book).order_by("id")


def term_get(*, book: PriceBook, term_id: int) -> PriceBookTerm:
    """Raises NotFoundError."""
    term = PriceBookTerm.objects.select_related("book").filter(book=book, pk=term_id).first()
    if term is None:
        raise NotFoundError(f"book {book.name!r} has no term {term_id}")
    return term


def spent_nano(
    *, tenant: str, key_id: str | None, start: dt.date, end: dt.date, prices: PriceList | None = None
) -> int:
    """Nano-units that a tenant (or one of its keys) used from `start` to `end`, UTC days, both included.

    What has no price counts nothing: gateways let no such model through where there is a budget. Time of
    hosting counts for the tenant as far as it is booked; no key has any. `prices` are read where none are
    given.
    """
    found = calls_nano(tenant=tenant, key_id=key_id, start=start, end=end, prices=prices or PriceList.load())
    return found if key_id is not None else found + hosting_booked_nano(tenant=tenant, start=start, end=end)


def calls_nano(*, tenant: str, key_id: str | None, start: dt.date, end: dt.date, prices: PriceList) -> int:
    """The part of `spent_nano` that is of calls, by the sums of usage: what is ingested is in it."""
    rollups = rollup_list(tenant=tenant, start=start, end=end)
    if key_id is not None:
        rollups = rollups.filter(key_id=key_id)
    # What a price depends on besides the day; sums that agree in it are one.
    columns = ("base_model", *sorted(prices.varies_by()))
    priced = ((use, _price(use, prices)) for use in use_summed(rollups, by=columns))
    return sum(call_nano(use, price) for use, price in priced if price is not None)


def hosting_booked_nano(*, tenant: str, start: dt.date, end: dt.date) -> int:
    """The part of it that is time of hosting: what is booked, some minutes after each hour."""
    return _booked_nano(tenant, start, end, items.TIMED)


def booked_nano(*, tenants: Collection[str], month: dt.date) -> dict[str, int]:
    """By tenant what is booked for a month's invoice: some minutes behind what was used. One query.

    Args:
        month: its first day.
    """
    rows = UsagePosting.objects.filter(tenant__in=tenants, month=month).values("tenant")
    return {row["tenant"]: int(row["nano"]) for row in rows.annotate(nano=Sum("amount_nano"))}


def prepaid_left_nano(*, tenant: str, today: dt.date, prices: PriceList) -> int:
    """What a tenant paid in advance, and its credits that hold on `today` (UTC), less all that it used and
    that is on no invoice; negative where it used more.

    The books follow usage by some minutes: of the last days what is not booked yet counts as well. What is
    booked while this reads counts twice, until it is read again.
    """
    start, end = today - dt.timedelta(days=_UNBOOKED_DAYS), today + dt.timedelta(days=1)
    booked = _booked_nano(tenant, start, end, _CALL_ITEMS)
    used = calls_nano(tenant=tenant, key_id=None, start=start, end=end, prices=prices)
    return balance(tenant=tenant, today=today, currency=prices.currency()).available - (used - booked)


def _booked_nano(tenant: str, start: dt.date, end: dt.date, of: Collection[str]) -> int:
    rows = UsagePosting.objects.filter(tenant=tenant, day__range=(start, end), item__in=of)
    return int(rows.aggregate(total=Sum("amount_nano"))["total"] or 0)


def _price(use: SummedUse, prices: PriceList) -> Price | None:
    return prices.call(
        tenant=use.tenant, day=use.day, base_model=use.base_model,
        adapter=adapter_name(use.adapter), backend=use.backend,
    )  # fmt: skip

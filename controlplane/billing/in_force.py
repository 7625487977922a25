"""Terms of price books around a day, and the price of each meter on it, for operators."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum

from controlplane.billing import items
from controlplane.billing.models import HostingPrice, PriceBookTerm
from controlplane.billing.price_list import EVERYONE, PriceList, call_unit
from controlplane.errors import InvalidInputError


class When(StrEnum):
    """Position of a term relative to a day."""

    PAST = "past"
    IN_FORCE = "in_force"
    FUTURE = "future"


@dataclass(frozen=True, slots=True)
class Holding:
    """A price book's term, with its position relative to a day."""

    term: PriceBookTerm
    when: When


@dataclass(frozen=True, slots=True)
class MeterPrice:
    """Price of a meter on a day.

    Attributes:
        item: a key of `items.PER`.
        base_model: "" for all base models.
        adapter: `<tenant>/<adapter>`, or "" for the base model and adapters without a price of their own.
        backend: "" for all without a price of their own.
        nano: nano-units per token, request or hour.
        book: name of the price book.
        since: first UTC day of the price.
    """

    item: str
    base_model: str
    adapter: str
    backend: str
    nano: int
    book: str
    since: dt.date


def terms_on(day: dt.date, *, tenant: str = EVERYONE) -> list[Holding]:
    """Return the terms for everyone and for the tenant ("": every tenant), by tenant and first day.

    Everyone's terms come first.
    """
    terms = PriceBookTerm.objects.select_related("book").order_by("tenant", "starts")
    if tenant:
        terms = terms.filter(tenant__in=(EVERYONE, tenant))
    return [Holding(term, _when(term, day)) for term in terms]


def read_day(text: str) -> dt.date:
    """Parse a UTC day as YYYY-MM-DD; today for "". Raises InvalidInputError."""
    if not text:
        return dt.datetime.now(dt.UTC).date()
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise InvalidInputError("day must be a date such as 2026-11-01", field="day") from None


def _when(term: PriceBookTerm, day: dt.date) -> When:
    if term.starts > day:
        return When.FUTURE
    return When.PAST if term.ends is not None and term.ends < day else When.IN_FORCE


def meter_prices(prices: PriceList, *, day: dt.date, tenant: str = EVERYONE) -> list[MeterPrice]:
    """Return the price of each priced meter for a tenant on `day`; for "" the prices for everyone.

    The tenant's own book takes precedence. Sorted by base model, adapter, backend, then item.
    """
    found = [
        MeterPrice(item, row.base_model, row.adapter, row.backend, nano, book.name, row.effective_from)
        for book, priced_items, row in prices.in_force(tenant=tenant, day=day)
        for item in priced_items
        if (nano := row.nano if isinstance(row, HostingPrice) else call_unit(row, item)) is not None
    ]
    order = list(items.PER)
    return sorted(found, key=lambda row: (row.base_model, row.adapter, row.backend, order.index(row.item)))

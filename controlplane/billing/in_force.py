"""Which price book holds when, and what each meter costs on a day: as the operator looks at it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum

from controlplane.billing import items
from controlplane.billing.models import HostingPrice, PriceBookTerm
from controlplane.billing.price_list import EVERYONE, PriceList, call_unit
from controlplane.errors import InvalidInputError


class When(StrEnum):
    """How a term lies to a day."""

    PAST = "past"
    IN_FORCE = "in_force"
    FUTURE = "future"


@dataclass(frozen=True, slots=True)
class Holding:
    """A book's term, as seen from a day."""

    term: PriceBookTerm
    when: When


@dataclass(frozen=True, slots=True)
class MeterPrice:
    """What a meter costs on a day.

    Attributes:
        item: see `items.PER`; base_model: "" for all.
        adapter: `<tenant>/<adapter>`, or "" for the base and its adapters without a price of their own.
        backend: "" for all without a price of their own.
        nano: nano-units a token, request or hour.
        book: whose price it is; since: from which UTC day on.
    """

    item: str
    base_model: str
    adapter: str
    backend: str
    nano: int
    book: str
    since: dt.date


def terms_on(day: dt.date, *, tenant: str = EVERYONE) -> list[Holding]:
    """Terms of everyone and, where one is named, of that tenant, else of every tenant; by their first day.
    Everyone's come first."""
    terms = PriceBookTerm.objects.select_related("book").order_by("tenant", "starts")
    if tenant:
        terms = terms.filter(tenant__in=(EVERYONE, tenant))
    return [Holding(term, _when(term, day)) for term in terms]


def read_day(text: str) -> dt.date:
    """A UTC day as YYYY-MM-DD; today for "". Raises InvalidInputError."""
    if not text:
        return dt.datetime.now(dt.UTC).date()
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise InvalidInputError("give day as YYYY-MM-DD", field="day") from None


def _when(term: PriceBookTerm, day: dt.date) -> When:
    if term.starts > day:
        return When.FUTURE
    return When.PAST if term.ends is not None and term.ends < day else When.IN_FORCE


def meter_prices(prices: PriceList, *, day: dt.date, tenant: str = EVERYONE) -> list[MeterPrice]:
    """What each meter that has a price costs a tenant on `day`, by its own book before everyone's; for "" by
    everyone's. By what it is for, then by item."""
    found = [
        MeterPrice(
            item, row.base_model, row.adapter, row.backend,
            row.nano if isinstance(row, HostingPrice) else call_unit(row, item), book.name,
            row.effective_from,
        )
        for book, of, row in prices.in_force(tenant=tenant, day=day)
        for item in of
    ]  # fmt: skip
    order = list(items.PER)
    return sorted(found, key=lambda at: (at.base_model, at.adapter, at.backend, order.index(at.item)))

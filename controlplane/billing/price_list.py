"""All price books in memory: the price of an item for a tenant on a day."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Final, Self

from controlplane.billing import items
from controlplane.billing.models import HostingPrice, Price, PriceBook, PriceBookTerm

EVERYONE: Final = ""
_CALL_COLUMNS: Final = {
    items.INPUT: "input_nano",
    items.CACHED_INPUT: "cached_input_nano",
    items.OUTPUT: "output_nano",
    items.REASONING: "reasoning_nano",
    items.REQUEST: "request_nano",
}
_Key = tuple[int, str, str, str, str]
"""Book, kind ("call" or a HostingPrice.Kind), base model, adapter, backend."""
_CALL: Final = "call"
_DAY: Final = dt.timedelta(days=1)


def call_unit(price: Price, item: str) -> int | None:
    """Return the nano-units that `price` asks per unit of a call's item.

    None for REASONING that has no price of its own.
    """
    nano: int | None = getattr(price, _CALL_COLUMNS[item])
    return nano


class PriceList:
    """Prices as they are in the database when `load` is called.

    A tenant's own book comes before everyone's; within a book the adapter's own price before its base
    model's, and one for the backend before one for all.

    Attributes:
        priced_by: usage columns, besides day and tenant, that prices of calls depend on. Usage can be summed
            over all other columns before it is priced.
    """

    def __init__(self, terms: list[PriceBookTerm], prices: list[Price], hosting: list[HostingPrice]) -> None:
        self._terms: dict[str, list[PriceBookTerm]] = defaultdict(list)
        for term in terms:
            self._terms[term.tenant].append(term)
        self._rows: dict[_Key, list[Price | HostingPrice]] = defaultdict(list)
        self._days: dict[int, list[dt.date]] = defaultdict(list)
        self._books: dict[tuple[str, dt.date], list[PriceBook]] = {}
        self._calls: dict[tuple[str, dt.date, str, str, str], Price | None] = {}
        columns = {
            "adapter": any(price.adapter for price in prices),
            "backend": any(price.backend for price in prices),
        }
        self.priced_by = ("base_model", *(name for name, varies in columns.items() if varies))
        rows: list[Price | HostingPrice] = [*prices, *hosting]
        for row in sorted(rows, key=lambda row: row.effective_from):
            kind = row.kind if isinstance(row, HostingPrice) else _CALL
            self._rows[row.book_id, kind, row.base_model, row.adapter, row.backend].append(row)
            self._days[row.book_id].append(row.effective_from)

    @classmethod
    def load(cls) -> Self:
        """Read all terms and prices in three queries; lookups afterwards need none."""
        terms = PriceBookTerm.objects.select_related("book").order_by("starts")
        return cls(list(terms), list(Price.objects.all()), list(HostingPrice.objects.all()))

    def books(self, *, tenant: str, day: dt.date) -> list[PriceBook]:
        """Return the price books in force, the tenant's own before everyone's."""
        if (tenant, day) not in self._books:
            self._books[tenant, day] = [
                term.book
                for whose in dict.fromkeys((tenant, EVERYONE))
                for term in self._terms.get(whose, ())
                if term.starts <= day and (term.ends is None or day <= term.ends)
            ]
        return self._books[tenant, day]

    def currency(self) -> str:
        """Return the currency of all price books with a term, which share one; USD without any."""
        return next((term.book.currency for terms in self._terms.values() for term in terms), "USD")

    def mark(self, *, tenant: str, day: dt.date) -> str:
        """Return a text that changes whenever the day's prices do. Rows are only added, so counts suffice."""
        books = self.books(tenant=tenant, day=day)
        return ",".join(f"{book.pk}:{bisect_right(self._days[book.pk], day)}" for book in books)

    def call(
        self, *, tenant: str, day: dt.date, base_model: str, adapter: str = "", backend: str = ""
    ) -> Price | None:
        """Return the price of calls on `day`; `adapter` is its name or ""."""
        # Drop columns that no price depends on, so that thousands of adapters share one cache entry.
        adapter = adapter if "adapter" in self.priced_by else ""
        backend = backend if "backend" in self.priced_by else ""
        key = tenant, day, base_model, adapter, backend
        if key not in self._calls:
            row = self._first(_CALL, tenant, day, _keys(_CALL, tenant, base_model, adapter, backend))
            self._calls[key] = row if isinstance(row, Price) else None
        return self._calls[key]

    def unit(
        self, item: str, *, tenant: str, day: dt.date, base_model: str, adapter: str = "", backend: str = ""
    ) -> int | None:
        """Return nano-units per `items.PER` of the item; None when it has no price."""
        if item in _CALL_COLUMNS:
            price = self.call(tenant=tenant, day=day, base_model=base_model, adapter=adapter, backend=backend)
            return None if price is None else call_unit(price, item)
        row = self._first(item, tenant, day, _keys(item, tenant, base_model, adapter, backend))
        return row.nano if isinstance(row, HostingPrice) else None

    def spans(self, *, start: dt.date, end: dt.date) -> list[tuple[dt.date, dt.date]]:
        """Split the UTC days `start` to `end` into spans within which no price of calls changes."""
        calls = (rows for key, rows in self._rows.items() if key[1] == _CALL)
        first = {row.effective_from for rows in calls for row in rows}
        for term in (term for terms in self._terms.values() for term in terms):
            first |= {term.starts} | ({term.ends + _DAY} if term.ends and term.ends < dt.date.max else set())
        starts = [start, *sorted(day for day in first if start < day <= end)]
        return [*((day, after - _DAY) for day, after in pairwise(starts)), (starts[-1], end)]

    def bills(self, item: str, *, tenant: str, day: dt.date) -> bool:
        """Return True if a price book in force for the tenant that day has any price of a timed item."""
        return any(
            rows[0].effective_from <= day
            for book in self.books(tenant=tenant, day=day)
            for (book_id, kind, *_), rows in self._rows.items()
            if book_id == book.pk and kind == item
        )

    def priced(self, *, day: dt.date) -> Iterator[tuple[str, str, str]]:
        """Yield (tenant, base model, adapter) of every price of calls in the books in force that day.

        "" stands for everyone, and for the base model without an adapter.
        """
        for tenant in list(self._terms):
            for book in self.books(tenant=tenant, day=day):
                for book_id, kind, base, adapter, _ in self._rows:
                    if book_id == book.pk and kind == _CALL:
                        whose, _, name = adapter.partition("/")
                        yield (whose or tenant), base, name

    def in_force(
        self, *, tenant: str, day: dt.date
    ) -> Iterator[tuple[PriceBook, tuple[str, ...], Price | HostingPrice]]:
        """Yield (book, items, price) of every price that applies to usage of the tenant that day.

        For "", these are the prices of everyone's book, including those for single tenants' adapters.
        """
        for book in self.books(tenant=tenant, day=day):
            for (book_id, kind, base, adapter, backend), rows in self._rows.items():
                whose, _, name = adapter.partition("/")
                if book_id != book.pk or (adapter and tenant and whose != tenant):
                    continue
                charged = tenant or whose
                row = self._first(kind, charged, day, _keys(kind, charged, base, name, backend))
                # Skip a price that is overridden by a more specific one, or by the tenant's own book.
                if row is not None and any(row is candidate for candidate in rows):
                    yield book, _items_of(row) if isinstance(row, Price) else (kind,), row

    def backends(self) -> set[str]:
        """Return the backends that have a price of their own, and ""."""
        return {"", *(backend for *_, backend in self._rows)}

    def _first(
        self, kind: str, tenant: str, day: dt.date, keys: list[tuple[str, str, str]]
    ) -> Price | HostingPrice | None:
        for book in self.books(tenant=tenant, day=day):
            for key in keys:
                rows = self._rows.get((book.pk, kind, *key), [])
                if reached := bisect_right(rows, day, key=lambda row: row.effective_from):
                    return rows[reached - 1]
        return None


def _items_of(price: Price) -> tuple[str, ...]:
    """Return the items that a price of calls has a price for."""
    return tuple(item for item in _CALL_COLUMNS if call_unit(price, item) is not None)


def _keys(kind: str, tenant: str, base_model: str, adapter: str, backend: str) -> list[tuple[str, str, str]]:
    """(base model, adapter, backend) of matching prices, most specific first.

    Prices of timed items may also be for all base models ("").
    """
    own = f"{tenant}/{adapter}" if adapter else ""
    bases = (base_model,) if kind == _CALL else dict.fromkeys((base_model, ""))
    fitting = product(dict.fromkeys((own, "")), bases, dict.fromkeys((backend, "")))
    return [(base, name, by) for name, base, by in fitting]

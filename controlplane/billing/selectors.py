"""Usage with prices. Reads rollups only, never single events."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Final

from django.db.models import QuerySet

from controlplane.billing.models import Price, PriceBook
from controlplane.errors import InvalidInputError, NotFoundError
from controlplane.metering.models import UsageRollup
from controlplane.metering.selectors import rollup_list
from controlplane.tenants.models import Tenant
from worker_engine.protocol import EngineName, ProtocolError

GROUPS: Final = ("tenant", "day", "adapter", "version", "alias", "key", "base", "status")
"""What a report may be grouped by. `adapter` is the adapter's name, `version` its engine name."""
_MAX_DAYS: Final = 366
_NANO: Final = Decimal(10) ** -9


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Usage of one group.

    Attributes:
        group: value of each `group_by` name; days as YYYY-MM-DD, "" for no adapter or alias.
        prompt_tokens: with the cached ones.
        price: in the book's currency, as decimal text; None when any token here has no price.
    """

    group: dict[str, str]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    price: str | None

    @property
    def unpriced(self) -> bool:
        """Some token here has no price in the book."""
        return self.price is None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Rows in the order of their groups, and their sum (its `group` is empty)."""

    start: dt.date
    end: dt.date
    group_by: tuple[str, ...]
    currency: str
    rows: tuple[UsageRow, ...]
    total: UsageRow


@dataclass(slots=True)
class _Sum:
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    nano: int = 0
    unpriced: bool = False

    def add(self, other: _Sum) -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    def row(self, group: dict[str, str]) -> UsageRow:
        price = None if self.unpriced else f"{Decimal(self.nano) * _NANO:.9f}"
        return UsageRow(
            group, self.requests, self.prompt_tokens, self.cached_tokens, self.completion_tokens, price
        )


def price_book_list() -> QuerySet[PriceBook]:
    """Every price book with its prices, by name."""
    return PriceBook.objects.prefetch_related("prices").order_by("name")


def price_book_get(*, name: str) -> PriceBook:
    """Raises NotFoundError."""
    book = PriceBook.objects.filter(name=name).first()
    if book is None:
        raise NotFoundError(f"there is no price book {name!r}")
    return book


def price_book_default() -> PriceBook | None:
    """The book that prices every tenant; None before there is one."""
    return PriceBook.objects.filter(is_default=True).first()


def usage_report(
    *, tenant: Tenant | None, start: dt.date, end: dt.date, group_by: Sequence[str] = ("day",)
) -> UsageReport:
    """Usage from `start` to `end`, UTC days, both included, at the prices of each day.

    Args:
        tenant: whose usage; None for all tenants' together, which only staff may see.

    Raises:
        InvalidInputError: days in the wrong order or more than a year apart, or an unknown group.
    """
    if not dt.timedelta(0) <= end - start < dt.timedelta(days=_MAX_DAYS):
        raise InvalidInputError(f"end must be 0 to {_MAX_DAYS - 1} days after start", field="end")
    if unknown := [name for name in group_by if name not in GROUPS]:
        raise InvalidInputError(
            f"cannot group by {unknown[0]!r}; groups are {', '.join(GROUPS)}", field="group_by"
        )
    names = tuple(dict.fromkeys(group_by))
    book = price_book_default()
    prices = _PriceList(book)
    groups: dict[tuple[str, ...], _Sum] = defaultdict(_Sum)
    total = _Sum()
    for rollup in rollup_list(tenant=tenant.pk if tenant else None, start=start, end=end):
        amount = _priced(rollup, prices)
        groups[tuple(_group_value(rollup, name) for name in names)].add(amount)
        total.add(amount)
    rows = tuple(groups[values].row(dict(zip(names, values, strict=True))) for values in sorted(groups))
    return UsageReport(start, end, names, book.currency if book else "USD", rows, total.row({}))


class _PriceList:
    """A book's prices in memory: by (base, adapter), in order of their days."""

    def __init__(self, book: PriceBook | None) -> None:
        self._prices: dict[tuple[str, str], list[Price]] = defaultdict(list)
        for price in Price.objects.filter(book=book).order_by("effective_from") if book else ():
            self._prices[price.base_model, price.adapter].append(price)

    def on(self, day: dt.date, *, base_model: str, adapter: str) -> Price | None:
        """The adapter's own price on `day`, else the base model's, else None."""
        for key in ((base_model, adapter), (base_model, "")):
            prices = self._prices.get(key, [])
            if reached := bisect_right(prices, day, key=lambda price: price.effective_from):
                return prices[reached - 1]
        return None


def _priced(rollup: UsageRollup, prices: _PriceList) -> _Sum:
    amount = _Sum(rollup.requests, rollup.prompt_tokens, rollup.cached_tokens, rollup.completion_tokens)
    adapter = _adapter_name(rollup.adapter)
    own = f"{rollup.tenant}/{adapter}" if adapter else ""
    price = prices.on(rollup.day, base_model=rollup.base_model, adapter=own)
    if price is None:
        # What used no token costs nothing at any price.
        amount.unpriced = bool(rollup.prompt_tokens or rollup.completion_tokens)
        return amount
    amount.nano = (
        (rollup.prompt_tokens - rollup.cached_tokens) * price.input_nano
        + rollup.cached_tokens * price.cached_input_nano
        + rollup.completion_tokens * price.output_nano
    )
    return amount


def _group_value(rollup: UsageRollup, name: str) -> str:
    match name:
        case "day":
            return rollup.day.isoformat()
        case "adapter":
            return _adapter_name(rollup.adapter)
        case "version":
            return rollup.adapter
        case "key":
            return rollup.key_id
        case "base":
            return rollup.base_model
        case _:
            return str(getattr(rollup, name))


def _adapter_name(engine_name: str) -> str:
    try:
        return EngineName.parse(engine_name).adapter if engine_name else ""
    except ProtocolError:
        return engine_name

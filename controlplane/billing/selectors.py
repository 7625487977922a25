"""Usage with prices. Reads rollups only, never single events."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django.db.models import QuerySet, Sum

from controlplane.billing import items
from controlplane.billing.ledger.selectors import balance
from controlplane.billing.models import HostingPrice, Price, PriceBook, PriceBookTerm, UsagePosting
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import adapter_name, call_nano
from controlplane.errors import InvalidInputError, NotFoundError
from controlplane.metering.selectors import SummedUse, hour_list, rollup_list, use_summed
from controlplane.tenants.models import Tenant

GROUPS: Final = (
    "tenant", "day", "hour", "project", "adapter", "version", "alias", "arm", "key", "base", "backend",
    "status",
)  # fmt: skip
"""What a report may be grouped by. `adapter` is the adapter's name, `version` its engine name."""
_COLUMNS: Final = {"key": "key_id", "base": "base_model", "version": "adapter"}
_NANO: Final = 10**9
_MAX_DAYS: Final = 366
_MAX_DAYS_BY_HOUR: Final = 31
MOST_ROWS: Final = 100_000
"""Of one report: some 17 MB of JSON."""
_MOST_READ: Final = 500_000
"""Sums that are read for one, where prices keep the database from adding them up: some seconds."""
_MOST_SPANS: Final = 4
"""Spans between changes of prices that are asked for one by one; of more, each day is."""
_UNBOOKED_DAYS: Final = 3
"""Days whose usage is booked every few minutes; what comes later is booked the night after."""
_CALL_ITEMS: Final = frozenset(items.PER) - items.TIMED
_GROUP_VALUE: Final[dict[str, Callable[[SummedUse], str]]] = {
    **{name: attrgetter(_COLUMNS.get(name, name)) for name in GROUPS},
    "day": lambda use: use.day.isoformat(),
    "hour": lambda use: f"{use.day.isoformat()}T{use.hour:02}:00Z",
    "adapter": lambda use: adapter_name(use.adapter),
}


class UsageRow(NamedTuple):
    """Usage of one group. A tuple: a month by day and adapter has thousands.

    Attributes:
        group: value of each `group_by` name; days as YYYY-MM-DD, hours as YYYY-MM-DDTHH:00Z, "" for no
            adapter or alias.
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
        # Once for each row of a report: written out, a tenth of a loop over the fields.
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.nano += other.nano
        self.unpriced |= other.unpriced

    def row(self, group: dict[str, str]) -> UsageRow:
        whole, rest = divmod(self.nano, _NANO)
        price = None if self.unpriced else f"{whole}.{rest:09}"
        return UsageRow(
            group, self.requests, self.prompt_tokens, self.cached_tokens, self.completion_tokens, price
        )


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


def usage_report(
    *,
    tenant: Tenant | None,
    start: dt.date,
    end: dt.date,
    group_by: Sequence[str] = ("day",),
    project: str | None = None,
) -> UsageReport:
    """Usage from `start` to `end`, UTC days, both included, at the prices of each day.

    Args:
        tenant: whose usage; None for all tenants' together, which only staff may see.
        project: slug of the one whose usage alone counts; None for all.

    Raises:
        InvalidInputError: days in the wrong order or more than a year apart (a month by the hour), an
            unknown group, or more than `MOST_ROWS` rows.
    """
    most = _MAX_DAYS_BY_HOUR if "hour" in group_by else _MAX_DAYS
    if not dt.timedelta(0) <= end - start < dt.timedelta(days=most):
        raise InvalidInputError(
            f"end must be 0 to {most - 1} days after start: ask for a longer time in parts", field="end"
        )
    if unknown := [name for name in group_by if name not in GROUPS]:
        raise InvalidInputError(
            f"cannot group by {unknown[0]!r}; groups are {', '.join(GROUPS)}", field="group_by"
        )
    names = tuple(dict.fromkeys(group_by))
    prices = PriceList.load()
    groups = _grouped(_used(tenant.pk if tenant else None, start, end, project, names, prices), names, prices)
    total = _Sum()
    for amount in groups.values():
        total.add(amount)
    rows = tuple(groups[values].row(dict(zip(names, values, strict=True))) for values in sorted(groups))
    return UsageReport(start, end, names, prices.currency(), rows, total.row({}))


def _grouped(
    used: Iterable[SummedUse], names: tuple[str, ...], prices: PriceList
) -> dict[tuple[str, ...], _Sum]:
    groups: dict[tuple[str, ...], _Sum] = {}
    told = [_GROUP_VALUE[name] for name in names]
    priced_by = attrgetter("tenant", "day", *_priced_by(prices))
    units: dict[Any, Price | None] = {}
    for count, use in enumerate(used):
        if count == _MOST_READ:
            raise _too_long(names)
        asked = priced_by(use)
        # Thousands of rows have the same few prices.
        if asked not in units:
            units[asked] = _price(use, prices)
        values, amount = tuple([value(use) for value in told]), _priced(use, units[asked])
        if values in groups:
            groups[values].add(amount)
        elif len(groups) == MOST_ROWS:
            raise _too_long(names)
        else:
            groups[values] = amount
    return groups


def _too_long(names: tuple[str, ...]) -> InvalidInputError:
    return InvalidInputError(
        f"a report has {MOST_ROWS} rows at most, of {_MOST_READ} sums: ask for fewer days at once"
        + (f", or for fewer of {', '.join(names)}" if names else ""),
        field="group_by",
    )


def _used(
    tenant: str | None, start: dt.date, end: dt.date, project: str | None, names: tuple[str, ...],
    prices: PriceList,
) -> Iterator[SummedUse]:  # fmt: skip
    """Usage added up as far as what is asked and what prices depend on let it be: of a month in which no
    price changes, and none is an adapter's own, the database adds up days and adapters."""
    spans = prices.spans(start=start, end=end)
    by_day = bool({"day", "hour"} & set(names)) or len(spans) > _MOST_SPANS
    columns = (*_priced_by(prices), *(_COLUMNS.get(name, name) for name in names))
    sums: Callable[..., QuerySet[Any]] = hour_list if "hour" in names else rollup_list
    for first, last in [(start, end)] if by_day else spans:
        rollups = sums(tenant=tenant, start=first, end=last)
        if project is not None:
            rollups = rollups.filter(project=project)
        yield from use_summed(rollups, by=columns, on=None if by_day else first, most=_MOST_READ + 1)


def _priced_by(prices: PriceList) -> tuple[str, ...]:
    """Columns, besides day and tenant, that a price depends on."""
    return ("base_model", *sorted(prices.varies_by()))


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
    return sum(_priced(use, _price(use, prices)).nano for use in use_summed(rollups, by=_priced_by(prices)))


def hosting_booked_nano(*, tenant: str, start: dt.date, end: dt.date) -> int:
    """The part of it that is time of hosting: what is booked, some minutes after each hour."""
    return _booked_nano(tenant, start, end, items.TIMED)


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


def _priced(rollup: SummedUse, price: Price | None) -> _Sum:
    amount = _Sum(rollup.requests, rollup.prompt_tokens, rollup.cached_tokens, rollup.completion_tokens)
    if price is None:
        # What used no token costs nothing at any price.
        amount.unpriced = bool(rollup.prompt_tokens or rollup.completion_tokens)
        return amount
    amount.nano = call_nano(rollup, price)
    return amount

"""The report of usage with prices, from sums only.

It works column by column: a month by day, adapter and key has tens of thousands of rows, and per-row work
would be most of the report's time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

from django.db.models import Case, CharField, Q, QuerySet, Value, When

from controlplane.billing.models import Price
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import UNPRICED, CallUnits, adapter_name, call_units, calls_nano
from controlplane.errors import InvalidInputError
from controlplane.metering.selectors import hour_list, rollup_list, use_columns
from controlplane.tenants.models import Tenant

GROUPS: Final = (
    "tenant",
    "day",
    "hour",
    "project",
    "adapter",
    "version",
    "alias",
    "arm",
    "key",
    "base",
    "backend",
    "status",
)
"""Names that a report may be grouped by. `adapter` is the adapter's name, `version` its engine name."""
PLACE: Final = "place"
_COLUMNS: Final = {"key": "key_id", "base": "base_model", "version": "adapter"}
_DIGITS: Final = 9
"""Decimals of nano-units."""
_MAX_DAYS: Final = 366
_MAX_DAYS_BY_HOUR: Final = 31
MOST_ROWS: Final = 100_000
"""Most rows of one report: some 17 MB of JSON."""
_MOST_READ: Final = 500_000
"""Most sums read for one report, when prices keep the database from adding them up: some seconds."""
_MOST_SPANS: Final = 4
"""Most spans between price changes that are queried one by one; for more, usage is summed by day."""
_Group = tuple[str, ...]
_Sums = tuple[int, int, int, int, int, int]
"""Of one group: requests, prompt, cached and completion tokens, nano-units, and how many of its sums have no
price."""


class UsageRow(NamedTuple):
    """Usage of one group. A tuple, since a month by day and adapter has thousands.

    Attributes:
        group: value of each `group_by` name; days as YYYY-MM-DD, hours as YYYY-MM-DDTHH:00Z, "" for no
            adapter or alias.
        prompt_tokens: with the cached ones.
        price: in the book's currency, as decimal text; None if some tokens have no price.
    """

    group: dict[str, str]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    price: str | None

    @property
    def unpriced(self) -> bool:
        """True if some tokens have no price."""
        return self.price is None

    @property
    def nano(self) -> int | None:
        """The price in nano-units."""
        return None if self.price is None else int(Decimal(self.price).scaleb(9))


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage by group, in order, and the total of all groups (its `group` is empty).

    Attributes:
        groups: for each `group_by` name, the values of all groups.
        requests, prompt_tokens, cached_tokens, completion_tokens: of every group.
        nano: cost in nano-units of each group's tokens that have a price.
        unpriced: how many of each group's sums have no price.
        priced_nano: the sum of `nano`.
    """

    start: dt.date
    end: dt.date
    group_by: tuple[str, ...]
    currency: str
    groups: tuple[Sequence[str], ...]
    requests: Sequence[int]
    prompt_tokens: Sequence[int]
    cached_tokens: Sequence[int]
    completion_tokens: Sequence[int]
    nano: Sequence[int]
    unpriced: Sequence[int]

    @property
    def rows(self) -> tuple[UsageRow, ...]:
        """The groups as rows, built on each access."""
        groups = zip(*self.groups, strict=True) if self.groups else repeat((), len(self.requests))
        sums = zip(*self._sums, strict=True)
        return tuple(
            _row(dict(zip(self.group_by, group, strict=True)), *amounts)
            for group, amounts in zip(groups, sums, strict=True)
        )

    def row(self, place: int) -> UsageRow:
        """Return one group by its index in the columns."""
        group = {name: texts[place] for name, texts in zip(self.group_by, self.groups, strict=True)}
        return _row(group, *(amounts[place] for amounts in self._sums))

    def together(self, places: Sequence[int]) -> UsageRow:
        """Return the sum of the groups at these indexes."""
        return _row({}, *(sum(map(amounts.__getitem__, places)) for amounts in self._sums))

    @property
    def total(self) -> UsageRow:
        return _row({}, *map(sum, self._sums))

    @property
    def priced_nano(self) -> int:
        return sum(self.nano)

    @property
    def _sums(self) -> tuple[Sequence[int], ...]:
        return (
            self.requests,
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
            self.nano,
            self.unpriced,
        )


def _row(
    group: dict[str, str], requests: int, prompt: int, cached: int, completion: int, nano: int, unpriced: int
) -> UsageRow:
    return UsageRow(group, requests, prompt, cached, completion, None if unpriced else money_text(nano))


def money_text(nano: int) -> str:
    """Format nano-units of 0 or more as decimal text in the currency."""
    # Slicing the text takes half the time of dividing, for tens of thousands of amounts.
    digits = str(nano).zfill(_DIGITS + 1)
    return f"{digits[:-_DIGITS]}.{digits[-_DIGITS:]}"


def usage_report(
    *,
    tenant: Tenant | None,
    start: dt.date,
    end: dt.date,
    group_by: Sequence[str] = ("day",),
    project: str | None = None,
    only: Q | None = None,
    apart: Sequence[Q] = (),
    prices: PriceList | None = None,
) -> UsageReport:
    """Return usage of the UTC days `start` to `end`, both included, at the prices of each day.

    Args:
        tenant: whose usage; None for all tenants' together, which only staff may see.
        project: slug of the only project that counts; None for all.
        only: filter on the sums' columns; None for all.
        apart: filters that define segments. They add the group `PLACE`: the index, as text, of the first
            filter that a sum matches, or "" for none.
        prices: read where none are given.

    Raises:
        InvalidInputError: days in the wrong order or more than a year apart (a month by the hour), an unknown
            group, or more than `MOST_ROWS` rows.
    """
    report_check(start=start, end=end, group_by=group_by)
    names = (*dict.fromkeys(group_by), *([PLACE] if apart else []))
    prices, condition = prices or PriceList.load(), only or Q()
    if project is not None:
        condition &= Q(project=project)
    used = _used(
        tenant.pk if tenant else None,
        start,
        end,
        names,
        prices,
        lambda sums: _placed(sums.filter(condition), apart),
    )
    groups, sums = _grouped(used, names, prices)
    return UsageReport(start, end, names, prices.currency(), tuple(groups), *sums)


def report_check(*, start: dt.date, end: dt.date, group_by: Sequence[str]) -> None:
    """Check days and groups as `usage_report` does. Raises InvalidInputError."""
    most = _MAX_DAYS_BY_HOUR if "hour" in group_by else _MAX_DAYS
    if not dt.timedelta(0) <= end - start < dt.timedelta(days=most):
        raise InvalidInputError(
            f"end must be 0 to {most - 1} days after start: ask for a longer time in parts", field="end"
        )
    if unknown := [name for name in group_by if name not in GROUPS]:
        raise InvalidInputError(
            f"cannot group by {unknown[0]!r}; groups are {', '.join(GROUPS)}", field="group_by"
        )


def _placed(sums: QuerySet[Any], apart: Sequence[Q]) -> QuerySet[Any]:
    if not apart:
        return sums
    places = [When(is_so, then=Value(str(place))) for place, is_so in enumerate(apart)]
    found: QuerySet[Any] = sums.annotate(
        **{PLACE: Case(*places, default=Value(""), output_field=CharField())}
    )
    return found


class _Used(NamedTuple):
    """Sums by column, with the tenant and first day that apply where no column has them."""

    columns: Mapping[str, Sequence[Any]]
    tenant: str | None
    day: dt.date

    def column(self, name: str) -> Iterable[Any]:
        """Return the column's values, or an endless repetition of the value that all sums share."""
        return self.columns[name] if name in self.columns else repeat(getattr(self, name))


def _used(
    tenant: str | None,
    start: dt.date,
    end: dt.date,
    names: tuple[str, ...],
    prices: PriceList,
    narrow: Callable[[QuerySet[Any]], QuerySet[Any]],
) -> Iterator[_Used]:
    """Read usage, summed as far as groups and prices allow.

    In a month without a change of prices, and without prices of adapters, the database sums over days and
    adapters.
    """
    spans = prices.spans(start=start, end=end)
    by_day = bool({"day", "hour"} & set(names)) or len(spans) > _MOST_SPANS
    columns = [*(["day"] if by_day else []), *([] if tenant else ["tenant"])]
    columns += [*_priced_by(prices), *(_COLUMNS.get(name, name) for name in names)]
    if tenant:
        columns = [name for name in columns if name != "tenant"]
    sums: Callable[..., QuerySet[Any]] = hour_list if "hour" in names else rollup_list
    remaining = _MOST_READ
    for first, last in [(start, end)] if by_day else spans:
        rollups = narrow(sums(tenant=tenant, start=first, end=last))
        found = use_columns(rollups, by=columns, most=remaining + 1)
        if (count := len(found["requests"])) > remaining:
            raise too_long(names)
        remaining -= count
        yield _Used(found, tenant, first)


_Columns = list[Sequence[Any]]


def _grouped(used: Iterable[_Used], names: tuple[str, ...], prices: PriceList) -> tuple[_Columns, _Columns]:
    """Return the columns of the groups' texts, in order, and of their sums; each group once."""
    formats, units, by = [_group_format(name) for name in names], _Units(prices), _priced_by(prices)
    parts = [(_texts(part, formats), _summed(part, units, by)) for part in used]
    # Usually the database has summed each group completely.
    if len(parts) == 1:
        texts, sums = parts[0]
        order = _order(texts, len(sums[0]))
        if len(order) == len(sums[0]) <= MOST_ROWS:
            return _taken(texts, order), _taken(sums, order)
    groups: dict[_Group, _Sums] = {}
    for texts, sums in parts:
        _add(groups, texts, sums)
        if len(groups) > MOST_ROWS:
            raise too_long(names)
    texts, sums = _turned(groups, len(names)), _turned(groups.values(), 6)
    order = _order(texts, len(groups))
    return _taken(texts, order), _taken(sums, order)


def _turned(rows: Collection[tuple[Any, ...]], width: int) -> _Columns:
    return list(zip(*rows, strict=True)) or [()] * width


def _add(groups: dict[_Group, _Sums], texts: _Columns, sums: _Columns) -> None:
    """Add up the sums of equal groups."""
    keys = zip(*texts, strict=True) if texts else repeat((), len(sums[0]))
    for key, amount in zip(keys, zip(*sums, strict=True), strict=True):
        known = groups.get(key)
        groups[key] = amount if known is None else _added(known, amount)


def _taken(columns: _Columns, order: Sequence[int]) -> _Columns:
    """Reorder the columns by the indexes `order`."""
    if len(order) < 2:
        return columns
    take = itemgetter(*order)
    return [take(column) for column in columns]


def _order(groups: _Columns, count: int) -> list[int]:
    """Indexes of the groups in sorted order, one of equal groups.

    A column has few distinct texts, and comparing their ranks takes half the time of comparing texts.
    """
    numbers = [0] * count
    for column in groups:
        texts = sorted(set(column))
        rank = {text: index for index, text in enumerate(texts)}
        numbers = [number * len(texts) + rank[text] for number, text in zip(numbers, column, strict=True)]
    places = dict(zip(numbers, range(count), strict=True))
    return [places[number] for number in sorted(places)]


def _added(one: _Sums, other: _Sums) -> _Sums:
    # Written out: this takes a third of the time of a loop, for tens of thousands of groups.
    return (
        one[0] + other[0],
        one[1] + other[1],
        one[2] + other[2],
        one[3] + other[3],
        one[4] + other[4],
        one[5] + other[5],
    )


class _Cells(dict[Any, str]):
    """The text of each value in a column, computed once per value."""

    def __init__(self, format_value: Callable[[Any], str]) -> None:
        self._format = format_value

    def __missing__(self, value: Any) -> str:
        text = self[value] = self._format(value)
        return text


class _Units(dict[tuple[Any, ...], CallUnits]):
    """Unit prices by tenant, day, base model and the other columns they depend on, looked up once each."""

    def __init__(self, prices: PriceList) -> None:
        self._prices = prices
        self._names = ("tenant", "day", *_priced_by(prices))

    def __missing__(self, key: tuple[Any, ...]) -> CallUnits:
        columns = dict(zip(self._names, key, strict=True))
        if "adapter" in columns:
            columns["adapter"] = adapter_name(columns["adapter"])
        price: Price | None = self._prices.call(**columns)
        units = self[key] = call_units(price) if price else UNPRICED
        return units


def _group_format(name: str) -> tuple[tuple[str, ...], Callable[[Any], str] | None]:
    """Columns that a group's text is made of, and the function to format it; None: the column is the text."""
    if name == "day":
        return ("day",), _Cells(dt.date.isoformat).__getitem__
    if name == "hour":
        return ("day", "hour"), _Cells(lambda at: f"{at[0].isoformat()}T{at[1]:02}:00Z").__getitem__
    if name == "adapter":
        return ("adapter",), _Cells(adapter_name).__getitem__
    return (_COLUMNS.get(name, name),), None


def _texts(part: _Used, formats: list[tuple[tuple[str, ...], Callable[[Any], str] | None]]) -> _Columns:
    count, texts = len(part.columns["requests"]), list[Sequence[str]]()
    for columns, format_value in formats:
        values = [part.column(name) for name in columns]
        cells: Iterable[Any] = values[0] if len(values) == 1 else zip(*values, strict=False)
        # A value shared by all sums is an endless iterator.
        texts.append(list(islice(cells if format_value is None else map(format_value, cells), count)))
    return texts


def _summed(part: _Used, units: _Units, priced_by: tuple[str, ...]) -> _Columns:
    """Return the columns of `_Sums`."""
    sums = part.columns
    keys = zip(part.column("tenant"), part.column("day"), *(sums[name] for name in priced_by), strict=False)
    found = list(map(units.__getitem__, keys))
    nanos = calls_nano(
        found, sums["prompt_tokens"], sums["cached_tokens"], sums["completion_tokens"], sums["answered"]
    )
    # Requests without tokens need no price.
    unpriced = [
        int(unit is UNPRICED and bool(prompt or completion))
        for unit, prompt, completion in zip(
            found, sums["prompt_tokens"], sums["completion_tokens"], strict=True
        )
    ]
    tokens = [sums[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens")]
    return [sums["requests"], *tokens, nanos, unpriced]


def _priced_by(prices: PriceList) -> tuple[str, ...]:
    """Columns, besides day and tenant, that a price depends on."""
    return ("base_model", *sorted(prices.varies_by()))


def too_long(names: tuple[str, ...]) -> InvalidInputError:
    return InvalidInputError(
        f"a report has {MOST_ROWS} rows at most, of {_MOST_READ} sums: ask for fewer days at once"
        + (f", or for fewer of {', '.join(names)}" if names else ""),
        field="group_by",
    )

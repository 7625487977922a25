"""Usage read from sums, priced, and added up by group.

It works column by column: a month by day, adapter and key has tens of thousands of rows, and per-row work
would be most of the report's time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

from django.db.models import QuerySet

from controlplane.billing.models import Price
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import UNPRICED, CallUnits, adapter_name, call_units, calls_nano
from controlplane.errors import InvalidInputError
from controlplane.metering.selectors import hour_list, rollup_list, use_columns

_COLUMNS: Final = {"key": "key_id", "base": "base_model", "version": "adapter"}
_TOKENS: Final = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
_WIDTH: Final = 8
MOST_ROWS: Final = 100_000
"""Most rows of one report: some 17 MB of JSON."""
_MOST_READ: Final = 500_000
"""Most sums read for one report, when prices keep the database from adding them up: some seconds."""
_MOST_SPANS: Final = 4
"""Most spans between price changes that are queried one by one; for more, usage is summed by day."""
Columns = list[Sequence[Any]]
_Group = tuple[str, ...]
_Sums = tuple[int, int, int, int, int, int, int, int]
"""Of one group: requests, prompt, cached, completion and reasoning tokens, images, nano-units, and how many
of its sums have no price."""


class Usage(NamedTuple):
    """Sums by column, with the tenant and first day that apply where no column has them."""

    columns: Mapping[str, Sequence[Any]]
    tenant: str | None
    day: dt.date

    def column(self, name: str) -> Iterable[Any]:
        """Return the column's values, or an endless repetition of the value that all sums share."""
        return self.columns[name] if name in self.columns else repeat(getattr(self, name))


def read_usage(
    tenant: str | None,
    start: dt.date,
    end: dt.date,
    names: tuple[str, ...],
    prices: PriceList,
    narrow: Callable[[QuerySet[Any]], QuerySet[Any]],
) -> Iterator[Usage]:
    """Read usage, summed as far as groups and prices allow.

    In a month without a change of prices, and without prices of adapters, the database sums over days and
    adapters.
    """
    spans = prices.spans(start=start, end=end)
    by_day = bool({"day", "hour"} & set(names)) or len(spans) > _MOST_SPANS
    columns = [*(["day"] if by_day else []), *([] if tenant else ["tenant"])]
    columns += [*prices.priced_by, *(_COLUMNS.get(name, name) for name in names)]
    if tenant:
        columns = [name for name in columns if name != "tenant"]
    sums: Callable[..., QuerySet[Any]] = hour_list if "hour" in names else rollup_list
    remaining = _MOST_READ
    for first, last in [(start, end)] if by_day else spans:
        rollups = narrow(sums(tenant=tenant, start=first, end=last))
        found = use_columns(rollups, by=columns, most=remaining + 1)
        if (count := len(found["requests"])) > remaining:
            raise too_many_rows(names)
        remaining -= count
        yield Usage(found, tenant, first)


def group_usage(used: Iterable[Usage], names: tuple[str, ...], prices: PriceList) -> tuple[Columns, Columns]:
    """Return the columns of the groups' texts, in order, and of their sums; each group once."""
    formats, units, by = [_group_format(name) for name in names], _Units(prices), prices.priced_by
    parts = [(_group_texts(part, formats), _priced_sums(part, units, by)) for part in used]
    # Usually the database has summed each group completely.
    if len(parts) == 1:
        texts, sums = parts[0]
        order = _order(texts, len(sums[0]))
        if len(order) == len(sums[0]) <= MOST_ROWS:
            return _reordered(texts, order), _reordered(sums, order)
    groups: dict[_Group, _Sums] = {}
    for texts, sums in parts:
        _add_up(groups, texts, sums)
        if len(groups) > MOST_ROWS:
            raise too_many_rows(names)
    texts, sums = _columns_of(groups, len(names)), _columns_of(groups.values(), _WIDTH)
    order = _order(texts, len(groups))
    return _reordered(texts, order), _reordered(sums, order)


def _columns_of(rows: Collection[tuple[Any, ...]], width: int) -> Columns:
    return list(zip(*rows, strict=True)) or [()] * width


def _add_up(groups: dict[_Group, _Sums], texts: Columns, sums: Columns) -> None:
    keys = zip(*texts, strict=True) if texts else repeat((), len(sums[0]))
    for key, amount in zip(keys, zip(*sums, strict=True), strict=True):
        known = groups.get(key)
        groups[key] = amount if known is None else _sum_of(known, amount)


def _reordered(columns: Columns, order: Sequence[int]) -> Columns:
    if len(order) < 2:
        return columns
    take = itemgetter(*order)
    return [take(column) for column in columns]


def _order(groups: Columns, count: int) -> list[int]:
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


def _sum_of(one: _Sums, other: _Sums) -> _Sums:
    # Written out: this takes a third of the time of a loop, for tens of thousands of groups.
    return (
        one[0] + other[0],
        one[1] + other[1],
        one[2] + other[2],
        one[3] + other[3],
        one[4] + other[4],
        one[5] + other[5],
        one[6] + other[6],
        one[7] + other[7],
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
        self._names = ("tenant", "day", *prices.priced_by)

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


def _group_texts(part: Usage, formats: list[tuple[tuple[str, ...], Callable[[Any], str] | None]]) -> Columns:
    count, texts = len(part.columns["requests"]), list[Sequence[str]]()
    for columns, format_value in formats:
        values = [part.column(name) for name in columns]
        cells: Iterable[Any] = values[0] if len(values) == 1 else zip(*values, strict=False)
        # A value shared by all sums is an endless iterator.
        texts.append(list(islice(cells if format_value is None else map(format_value, cells), count)))
    return texts


def _priced_sums(part: Usage, units: _Units, priced_by: tuple[str, ...]) -> Columns:
    sums = part.columns
    keys = zip(part.column("tenant"), part.column("day"), *(sums[name] for name in priced_by), strict=False)
    found = list(map(units.__getitem__, keys))
    prompt, cached, completion, reasoning = tokens = [sums[name] for name in _TOKENS]
    nanos = calls_nano(found, prompt, cached, completion, reasoning, sums["answered"])
    # Requests without tokens need no price.
    unpriced = [
        int(unit is UNPRICED and bool(read or written))
        for unit, read, written in zip(found, prompt, completion, strict=True)
    ]
    return [sums["requests"], *tokens, sums["images"], nanos, unpriced]


def too_many_rows(names: tuple[str, ...]) -> InvalidInputError:
    return InvalidInputError(
        f"a report has at most {MOST_ROWS} rows, from {_MOST_READ} sums: choose fewer days"
        + (f", or fewer of {', '.join(names)}" if names else ""),
        field="group_by",
    )

"""Usage by one name, over time, beside the period before: the largest by themselves, the others together."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, Final

from django.db.models import Q

from controlplane.billing.price_list import PriceList
from controlplane.billing.usage_report import UsageReport, UsageRow, usage_report
from controlplane.errors import InvalidInputError
from controlplane.metering.requests import adapter_is
from controlplane.tenants.models import Tenant

EXPLORED: Final = ("adapter", "version", "key", "base", "backend", "project", "alias", "status")
"""What usage may be grouped by and narrowed to. `base` is the model that adapters share."""
BUCKETS: Final = ("day", "hour")
MEASURES: Final = ("tokens", "requests", "price")
TOP: Final = 8
"""Groups that are shown by themselves."""
_COLUMNS: Final = {"key": "key_id", "base": "base_model", "version": "adapter"}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: UTC days, both included, and by what.

    Attributes:
        only: value by name, of `EXPLORED`; usage of others is left out.
        measure: by which the largest are chosen.
    """

    start: dt.date
    end: dt.date
    group: str = "adapter"
    bucket: str = "day"
    measure: str = "tokens"
    only: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raises InvalidInputError for a group, bucket or measure that there is not, and for days with no
        period before them."""
        for name, known in (("group", EXPLORED), ("bucket", BUCKETS), ("measure", MEASURES)):
            if getattr(self, name) not in known:
                raise InvalidInputError(f"{name} must be one of {', '.join(known)}", field=name)
        # Ordinals: a date before the year 1 or after 9999 cannot even be computed.
        if self.start.toordinal() <= (days := (self.end - self.start).days + 1):
            raise InvalidInputError(
                f"the {days} days before {self.start} would begin before the year 1: ask for later or fewer"
                " days",
                field="start",
            )


@dataclass(frozen=True, slots=True)
class Line:
    """A group's usage, and that of the period before."""

    value: str
    row: UsageRow
    before: UsageRow
    series: tuple[UsageRow, ...]


@dataclass(frozen=True, slots=True)
class Explored:
    """The answer.

    Attributes:
        times: days as YYYY-MM-DD, hours as YYYY-MM-DDTHH:00Z; each line's series has one row for each.
        lines: the largest, the largest first.
        others: all that is in no line; None where nothing is.
        count: groups that are in `others`.
        before_start: first day of the period before, which is as long and ends the day before.
    """

    currency: str
    times: tuple[str, ...]
    lines: tuple[Line, ...]
    others: Line | None
    count: int
    total: UsageRow
    before: UsageRow
    before_start: dt.date


def usage_explore(*, tenant: Tenant, asked: Question, prices: PriceList) -> Explored:
    """Five reads of sums, whatever there is: groups, times, the largest over time, two of the period before.

    Raises InvalidInputError: as `usage_report` does, and for what cannot be asked.
    """
    asked.check()
    only = _only(tenant.pk, asked.only)
    length = asked.end - asked.start + dt.timedelta(days=1)
    now: dict[str, Any] = {"tenant": tenant, "start": asked.start, "end": asked.end, "prices": prices}
    then = {**now, "start": asked.start - length, "end": asked.end - length}
    groups = usage_report(**now, group_by=(asked.group,), only=only)
    by_time = usage_report(**now, group_by=(asked.bucket,), only=only)
    ranked = _largest_first(groups, asked.measure)
    top, rest = [groups.row(place) for place in ranked[:TOP]], ranked[TOP:]
    values = [row.group[asked.group] for row in top]
    theirs = only & _is(tenant.pk, asked.group, values)
    over_time = usage_report(**now, group_by=(asked.bucket, asked.group), only=theirs)
    before = usage_report(**then, group_by=(asked.group,), only=theirs)
    before_all = usage_report(**then, group_by=(), only=only).total
    times = _times(asked)
    cells = {(row.group[asked.bucket], row.group[asked.group]): row for row in over_time.rows}
    was = {row.group[asked.group]: row for row in before.rows}
    lines = tuple(
        Line(value, row, was.get(value, _NONE), tuple(cells.get((time, value), _NONE) for time in times))
        for value, row in zip(values, top, strict=True)
    )
    totals = {row.group[asked.bucket]: row for row in by_time.rows}
    others = None
    if rest:
        series = tuple(
            _less(totals.get(time, _NONE), [line.series[at] for line in lines])
            for at, time in enumerate(times)
        )
        others = Line("", groups.together(rest), _less(before_all, [line.before for line in lines]), series)
    return Explored(
        groups.currency, times, lines, others, len(rest), groups.total, before_all, asked.start - length
    )


def measured(row: UsageRow, measure: str) -> Decimal | None:
    """The row's amount of it; None of a price that nobody knows."""
    match measure:
        case "requests":
            return Decimal(row.requests)
        case "price":
            return None if row.price is None else Decimal(row.price)
        case _:
            return Decimal(row.prompt_tokens + row.completion_tokens)


def _largest_first(groups: UsageReport, measure: str) -> list[int]:
    """Places of the groups, which are in order by name; where two are as large that order stays. What may be
    larger than it is known to be is before all others."""
    amounts: list[float]
    match measure:
        case "requests":
            amounts = [*groups.requests]
        case "price":
            priced = zip(groups.nano, groups.unpriced, strict=True)
            amounts = [math.inf if unpriced else nano for nano, unpriced in priced]
        case _:
            tokens = zip(groups.prompt_tokens, groups.completion_tokens, strict=True)
            amounts = [prompt + completion for prompt, completion in tokens]
    return sorted(range(len(amounts)), key=amounts.__getitem__, reverse=True)


_NONE: Final = UsageRow({}, 0, 0, 0, 0, "0.000000000")


def _only(tenant: str, only: Mapping[str, str]) -> Q:
    kept = Q()
    for name, value in only.items():
        if name not in EXPLORED:
            raise InvalidInputError(f"usage is narrowed by {', '.join(EXPLORED)}", field=name)
        kept &= _is(tenant, name, [value])
    return kept


def _is(tenant: str, name: str, values: Iterable[str]) -> Q:
    if name != "adapter":
        return Q(**{f"{_COLUMNS.get(name, name)}__in": list(values)})
    # No value at all is no adapter, not every one.
    found = [adapter_is(tenant, value) if value else Q(adapter="") for value in values]
    return reduce(or_, found, Q(pk__in=[]))


def _times(asked: Question) -> tuple[str, ...]:
    days = [asked.start + dt.timedelta(days=at) for at in range((asked.end - asked.start).days + 1)]
    if asked.bucket == "day":
        return tuple(day.isoformat() for day in days)
    return tuple(f"{day.isoformat()}T{hour:02}:00Z" for day in days for hour in range(24))


def _sum(rows: Iterable[UsageRow]) -> UsageRow:
    held = list(rows)
    known = [Decimal(row.price) for row in held if row.price is not None]
    price = f"{sum(known, Decimal(0)):.9f}" if len(known) == len(held) else None
    return UsageRow(
        {}, sum(row.requests for row in held), sum(row.prompt_tokens for row in held),
        sum(row.cached_tokens for row in held), sum(row.completion_tokens for row in held), price,
    )  # fmt: skip


def _less(total: UsageRow, parts: Iterable[UsageRow]) -> UsageRow:
    """What of `total` is in no part; its price is unknown where any of them is."""
    taken = _sum(parts)
    known = total.price is not None and taken.price is not None
    return UsageRow(
        {}, total.requests - taken.requests, total.prompt_tokens - taken.prompt_tokens,
        total.cached_tokens - taken.cached_tokens, total.completion_tokens - taken.completion_tokens,
        f"{Decimal(total.price or 0) - Decimal(taken.price or 0):.9f}" if known else None,
    )  # fmt: skip

"""Usage by one name, over time, beside the period before: the largest by themselves, the others together."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from heapq import nsmallest
from typing import Any, Final

from django.db.models import Q

from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import adapter_name
from controlplane.billing.usage_report import (
    MOST_ROWS,
    UsageReport,
    UsageRow,
    report_check,
    too_long,
    usage_report,
)
from controlplane.errors import InvalidInputError
from controlplane.metering.requests import adapter_is
from controlplane.metering.selectors import amount_by, rollup_list
from controlplane.tenants.models import Tenant

EXPLORED: Final = ("adapter", "version", "key", "base", "backend", "project", "alias", "status")
"""What usage may be grouped by and narrowed to. `base` is the model that adapters share."""
BUCKETS: Final = ("day", "hour")
MEASURES: Final = ("tokens", "requests", "price")
TOP: Final = 8
"""Groups that are shown by themselves."""
_AMOUNTS: Final = {"tokens": ("prompt_tokens", "completion_tokens"), "requests": ("requests",)}
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
    """Three reads of sums, whatever there is: which groups are the largest, those and the others over time,
    and in the period before. By the hour a fourth, since sums by the day are older.

    Raises InvalidInputError: as `usage_report` does, and for what cannot be asked.
    """
    asked.check()
    report_check(start=asked.start, end=asked.end, group_by=(asked.bucket,))
    only = _only(tenant.pk, asked.only)
    length = asked.end - asked.start + dt.timedelta(days=1)
    values, count = _largest(tenant, asked, only, prices)
    now: dict[str, Any] = {
        "tenant": tenant, "start": asked.start, "end": asked.end, "prices": prices, "only": only,
        "apart": [_group_is(tenant.pk, asked.group, value) for value in values],
    }  # fmt: skip
    then = {**now, "start": asked.start - length, "end": asked.end - length}
    over_time = usage_report(**now, group_by=(asked.bucket,))
    whole = over_time if asked.bucket == "day" else usage_report(**now, group_by=())
    before = usage_report(**then, group_by=())
    times = _times(asked)
    lines = [
        Line(value, _placed(whole, place), _placed(before, place), _series(over_time, place, times))
        for place, value in (*((str(at), value) for at, value in enumerate(values)), ("", ""))
    ]
    return Explored(
        over_time.currency, times, tuple(lines[:-1]), lines[-1] if count > len(values) else None,
        count - len(values), whole.total, before.total, asked.start - length,
    )  # fmt: skip


def measured(row: UsageRow, measure: str) -> Decimal | None:
    """The row's amount of it; None of a price that nobody knows."""
    match measure:
        case "requests":
            return Decimal(row.requests)
        case "price":
            return None if row.price is None else Decimal(row.price)
        case _:
            return Decimal(row.prompt_tokens + row.completion_tokens)


def _largest(tenant: Tenant, asked: Question, only: Q, prices: PriceList) -> tuple[list[str], int]:
    """The largest `TOP` groups, the largest first and by name where two are as large; how many there are.
    What may be larger than it is known to be is before all others."""
    amounts: dict[str, float] = defaultdict(int)
    if asked.measure == "price":
        found = usage_report(
            tenant=tenant, start=asked.start, end=asked.end, group_by=(asked.group,), only=only, prices=prices
        )
        for name, nano, unpriced in zip(found.groups[0], found.nano, found.unpriced, strict=True):
            amounts[name] = math.inf if unpriced else nano
    else:
        # The one amount alone: ten thousand rows of all, with their prices, would be most of a page's time.
        sums = rollup_list(tenant=tenant.pk, start=asked.start, end=asked.end).filter(only)
        column, measure = _COLUMNS.get(asked.group, asked.group), _AMOUNTS[asked.measure]
        rows = amount_by(sums, by=column, amount=measure, most=MOST_ROWS + 1)
        if len(rows) > MOST_ROWS:
            raise too_long((asked.group,))
        for value, amount in rows:
            amounts[adapter_name(value) if asked.group == "adapter" else value] += amount
    return nsmallest(TOP, amounts, key=lambda name: (-amounts[name], name)), len(amounts)


_NONE: Final = UsageRow({}, 0, 0, 0, 0, "0.000000000")


def _only(tenant: str, only: Mapping[str, str]) -> Q:
    kept = Q()
    for name, value in only.items():
        if name not in EXPLORED:
            raise InvalidInputError(f"usage is narrowed by {', '.join(EXPLORED)}", field=name)
        kept &= _is(tenant, name, value)
    return kept


def _is(tenant: str, name: str, value: str) -> Q:
    if name == "adapter" and value:
        return adapter_is(tenant, value)
    return Q(**{_COLUMNS.get(name, name): value})


def _group_is(tenant: str, name: str, value: str) -> Q:
    """As `_is`, also of what is called as no adapter of ours is: it is a group by its whole name."""
    found = _is(tenant, name, value)
    return found | Q(adapter=value) if name == "adapter" else found


def _times(asked: Question) -> tuple[str, ...]:
    days = [asked.start + dt.timedelta(days=at) for at in range((asked.end - asked.start).days + 1)]
    if asked.bucket == "day":
        return tuple(day.isoformat() for day in days)
    return tuple(f"{day.isoformat()}T{hour:02}:00Z" for day in days for hour in range(24))


def _placed(report: UsageReport, place: str) -> UsageRow:
    """What was used in a place at all times together."""
    places = report.groups[-1] if report.groups else [""] * len(report.requests)
    return report.together([at for at, found in enumerate(places) if found == place])


def _series(report: UsageReport, place: str, times: Iterable[str]) -> tuple[UsageRow, ...]:
    """The same at each time."""
    told = zip(report.groups[0], report.groups[-1], strict=True)
    found = {time: at for at, (time, where) in enumerate(told) if where == place}
    return tuple(report.row(found[time]) if time in found else _NONE for time in times)

"""Usage by one name over time, with the previous period: the largest groups, and all others together."""

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
from controlplane.billing.usage_groups import MOST_ROWS, too_many_rows
from controlplane.billing.usage_report import UsageReport, UsageRow, report_check, usage_report
from controlplane.errors import InvalidInputError
from controlplane.metering.requests import adapter_is
from controlplane.metering.selectors import amount_by, rollup_list
from controlplane.tenants.models import Tenant

EXPLORED: Final = ("adapter", "version", "key", "base", "operation", "backend", "project", "alias", "status")
"""Names that usage may be grouped by and filtered on. `base` is the model that adapters share."""
BUCKETS: Final = ("day", "hour")
MEASURES: Final = ("tokens", "requests", "price")
TOP: Final = 8
"""Groups with a line of their own."""
_AMOUNTS: Final = {"tokens": ("prompt_tokens", "completion_tokens"), "requests": ("requests",)}
_COLUMNS: Final = {"key": "key_id", "base": "base_model", "version": "adapter"}


@dataclass(frozen=True, slots=True)
class Question:
    """A query: UTC days, both included, one grouping, and filters.

    Attributes:
        only: value by name, of `EXPLORED`; other usage is left out.
        measure: selects the largest groups.
    """

    start: dt.date
    end: dt.date
    group: str = "adapter"
    bucket: str = "day"
    measure: str = "tokens"
    only: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise InvalidInputError for an unknown group, bucket or measure, or for too early days.

        The previous period may not begin before the year 1.
        """
        for name, known in (("group", EXPLORED), ("bucket", BUCKETS), ("measure", MEASURES)):
            if getattr(self, name) not in known:
                raise InvalidInputError(f"{name} must be one of {', '.join(known)}", field=name)
        # Ordinals: a date before the year 1 or after 9999 cannot even be computed.
        if self.start.toordinal() <= (days := (self.end - self.start).days + 1):
            raise InvalidInputError(
                f"the {days} days before {self.start} are out of range: choose later or fewer days",
                field="start",
            )


@dataclass(frozen=True, slots=True)
class Line:
    """A group's usage, and that of the previous period."""

    value: str
    row: UsageRow
    before: UsageRow
    series: tuple[UsageRow, ...]


@dataclass(frozen=True, slots=True)
class Explored:
    """Usage of the largest groups and of all others, over time.

    Attributes:
        times: days as YYYY-MM-DD, hours as YYYY-MM-DDTHH:00Z; each line's series has one row for each.
        lines: the largest groups, the largest first.
        others: usage in no line; None if there is none.
        count: groups that are in `others`.
        before_start: first day of the previous period, which is as long and ends the day before.
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
    """Return the largest groups of usage and the others, over time and in the previous period.

    It reads sums three times, however much usage there is: for the largest groups, over time, and for the
    previous period. By the hour it reads a fourth time, since daily sums go back further.

    Raises InvalidInputError: as `usage_report` and `Question.check` do.
    """
    asked.check()
    report_check(start=asked.start, end=asked.end, group_by=(asked.bucket,))
    only = _only(tenant.pk, asked.only)
    length = asked.end - asked.start + dt.timedelta(days=1)
    values, count = _largest(tenant, asked, only, prices)
    now: dict[str, Any] = {
        "tenant": tenant,
        "start": asked.start,
        "end": asked.end,
        "prices": prices,
        "only": only,
        "apart": [_group_is(tenant.pk, asked.group, value) for value in values],
    }
    previous = {**now, "start": asked.start - length, "end": asked.end - length}
    over_time = usage_report(**now, group_by=(asked.bucket,))
    whole = over_time if asked.bucket == "day" else usage_report(**now, group_by=())
    before = usage_report(**previous, group_by=())
    times = _times(asked)
    lines = [
        Line(value, _placed(whole, place), _placed(before, place), _series(over_time, place, times))
        for place, value in (*((str(at), value) for at, value in enumerate(values)), ("", ""))
    ]
    return Explored(
        over_time.currency,
        times,
        tuple(lines[:-1]),
        lines[-1] if count > len(values) else None,
        count - len(values),
        whole.total,
        before.total,
        asked.start - length,
    )


def measured(row: UsageRow, measure: str) -> Decimal | None:
    """Return the row's value of a measure; None for a price that is unknown."""
    match measure:
        case "requests":
            return Decimal(row.requests)
        case "price":
            return None if row.price is None else Decimal(row.price)
        case _:
            return Decimal(row.prompt_tokens + row.completion_tokens)


def _largest(tenant: Tenant, question: Question, only: Q, prices: PriceList) -> tuple[list[str], int]:
    """Names of the `TOP` largest groups, by size then name, and the number of groups.

    Groups with unpriced usage come first when measured by price, since their real price may be larger.
    """
    amounts: dict[str, float] = defaultdict(int)
    if question.measure == "price":
        found = usage_report(
            tenant=tenant,
            start=question.start,
            end=question.end,
            group_by=(question.group,),
            only=only,
            prices=prices,
        )
        for name, nano, unpriced in zip(found.groups[0], found.nano, found.unpriced, strict=True):
            amounts[name] = math.inf if unpriced else nano
    else:
        # Read this one measure only: ten thousand priced rows would take most of a page's time.
        sums = rollup_list(tenant=tenant.pk, start=question.start, end=question.end).filter(only)
        column, measure = _COLUMNS.get(question.group, question.group), _AMOUNTS[question.measure]
        rows = amount_by(sums, by=column, amount=measure, most=MOST_ROWS + 1)
        if len(rows) > MOST_ROWS:
            raise too_many_rows((question.group,))
        for value, amount in rows:
            amounts[adapter_name(value) if question.group == "adapter" else value] += amount
    return nsmallest(TOP, amounts, key=lambda name: (-amounts[name], name)), len(amounts)


_NONE: Final = UsageRow({}, 0, 0, 0, 0, 0, 0, "0.000000000")


def _only(tenant: str, only: Mapping[str, str]) -> Q:
    condition = Q()
    for name, value in only.items():
        if name not in EXPLORED:
            raise InvalidInputError(f"usage can be filtered by {', '.join(EXPLORED)}", field=name)
        condition &= _is(tenant, name, value)
    return condition


def _is(tenant: str, name: str, value: str) -> Q:
    if name == "adapter" and value:
        return adapter_is(tenant, value)
    return Q(**{_COLUMNS.get(name, name): value})


def _group_is(tenant: str, name: str, value: str) -> Q:
    """As `_is`, and for adapters also models whose whole name is the group's, such as external ones."""
    found = _is(tenant, name, value)
    return found | Q(adapter=value) if name == "adapter" else found


def _times(question: Question) -> tuple[str, ...]:
    days = [
        question.start + dt.timedelta(days=offset)
        for offset in range((question.end - question.start).days + 1)
    ]
    if question.bucket == "day":
        return tuple(day.isoformat() for day in days)
    return tuple(f"{day.isoformat()}T{hour:02}:00Z" for day in days for hour in range(24))


def _placed(report: UsageReport, place: str) -> UsageRow:
    places = report.groups[-1] if report.groups else [""] * len(report.requests)
    return report.together([at for at, found in enumerate(places) if found == place])


def _series(report: UsageReport, place: str, times: Iterable[str]) -> tuple[UsageRow, ...]:
    cells = zip(report.groups[0], report.groups[-1], strict=True)
    found = {time: at for at, (time, where) in enumerate(cells) if where == place}
    return tuple(report.row(found[time]) if time in found else _NONE for time in times)

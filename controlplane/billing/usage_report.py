"""The report of usage with prices, from sums only."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import repeat
from typing import Any, Final, NamedTuple

from django.db.models import Case, CharField, Q, QuerySet, Value, When

from controlplane.billing.price_list import PriceList
from controlplane.billing.usage_groups import group_usage, read_usage
from controlplane.errors import InvalidInputError
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
    "operation",
    "backend",
    "status",
)
"""Names that a report may be grouped by. `adapter` is the adapter's name, `version` its engine name."""
PLACE: Final = "place"
_DIGITS: Final = 9
"""Decimals of nano-units."""
_MAX_DAYS: Final = 366
_MAX_DAYS_BY_HOUR: Final = 31


class UsageRow(NamedTuple):
    """Usage of one group. A tuple, since a month by day and adapter has thousands.

    Attributes:
        group: value of each `group_by` name; days as YYYY-MM-DD, hours as YYYY-MM-DDTHH:00Z, "" for no
            adapter or alias.
        prompt_tokens: with the cached ones.
        completion_tokens: with those of the thought.
        images: in the prompts; their tokens are among the prompt's.
        price: in the book's currency, as decimal text; None if some tokens have no price.
    """

    group: dict[str, str]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    images: int
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
        requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, images: of every group.
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
    reasoning_tokens: Sequence[int]
    images: Sequence[int]
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
            self.reasoning_tokens,
            self.images,
            self.nano,
            self.unpriced,
        )


def _row(group: dict[str, str], *sums: int) -> UsageRow:
    """Return the row of a group from its sums, in the order of `UsageReport._sums`."""
    requests, prompt, cached, completion, reasoning, images, nano, unpriced = sums
    price = None if unpriced else money_text(nano)
    return UsageRow(group, requests, prompt, cached, completion, reasoning, images, price)


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
    used = read_usage(
        tenant.pk if tenant else None,
        start,
        end,
        names,
        prices,
        lambda sums: _placed(sums.filter(condition), apart),
    )
    groups, sums = group_usage(used, names, prices)
    return UsageReport(start, end, names, prices.currency(), tuple(groups), *sums)


def report_check(*, start: dt.date, end: dt.date, group_by: Sequence[str]) -> None:
    """Check days and groups as `usage_report` does. Raises InvalidInputError."""
    most = _MAX_DAYS_BY_HOUR if "hour" in group_by else _MAX_DAYS
    if not dt.timedelta(0) <= end - start < dt.timedelta(days=most):
        raise InvalidInputError(
            f"end must be 0 to {most - 1} days after start: split longer periods", field="end"
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

"""Hosting time by group, from hourly sums."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from django.db.models import QuerySet, Sum

from controlplane.errors import InvalidInputError
from controlplane.metering.models import HostingHour, HostingKind

GROUPS: Final = ("tenant", "day", "hour", "base", "adapter", "deployment", "tier", "instance_type")
_COLUMNS: Final = {"base": "base_model"}
_MOST_DAYS: Final = 92
"""A quarter. Sums are hourly: a year of 10,000 adapters has 88 million of them."""
_MOST_DAYS_BY_HOUR: Final = 31
_GB: Final = 10**9
UNITS: Final = {
    HostingKind.COPY: "copy-hours",
    HostingKind.GPU: "GPU-hours",
    HostingKind.INSTANCE: "instance-hours",
    HostingKind.ADAPTER: "adapter-hours",
    HostingKind.STORAGE: "GB-hours",
    HostingKind.OPTIMIZATION: "instance-hours",
}


@dataclass(frozen=True, slots=True)
class HostingRow:
    """Hosting time of one kind and group. `amount` is decimal text in `unit`; GB are 10^9 bytes."""

    kind: str
    group: dict[str, str]
    quantity_seconds: int
    amount: str
    unit: str


def hosting_hours(*, tenant: str | None, start: dt.date, end: dt.date) -> QuerySet[HostingHour]:
    """Hourly sums of the UTC days `start` to `end`, both included, of a tenant.

    None for all tenants, with the operator's own resources.
    """
    hours = HostingHour.objects.filter(day__range=(start, end))
    return hours if tenant is None else hours.filter(tenant=tenant)


def hosting_report(
    *, tenant: str | None, start: dt.date, end: dt.date, group_by: Sequence[str] = ("day",)
) -> list[HostingRow]:
    """Return hosting time by kind and `group_by`.

    Raises InvalidInputError for days in the wrong order, too many of them, or an unknown group.
    """
    most = _MOST_DAYS_BY_HOUR if "hour" in group_by else _MOST_DAYS
    if not dt.timedelta(0) <= end - start < dt.timedelta(days=most):
        raise InvalidInputError(
            f"end must be 0 to {most - 1} days after start: split longer periods and add up the results",
            field="end",
        )
    if unknown := [name for name in group_by if name not in GROUPS]:
        raise InvalidInputError(
            f"cannot group by {unknown[0][:64]!r}; groups are {', '.join(GROUPS)}", field="group_by"
        )
    names = tuple(dict.fromkeys(group_by))
    columns = [_COLUMNS.get(name, name) for name in names]
    if "hour" in columns and "day" not in columns:
        columns.append("day")
    rows = hosting_hours(tenant=tenant, start=start, end=end).values("kind", *columns)
    summed = rows.annotate(total=Sum("quantity_seconds")).order_by("kind", *columns)
    return [_row(row["kind"], {name: _value(row, name) for name in names}, row["total"]) for row in summed]


def _row(kind: str, group: dict[str, str], total: int) -> HostingRow:
    # A sum of integers is an integer on SQLite and on PostgreSQL.
    per = 3600 * (_GB if kind == HostingKind.STORAGE else 1)
    amount = f"{Decimal(int(total)) / per:.6f}"
    return HostingRow(kind, group, int(total), amount, UNITS[HostingKind(kind)])


def _value(row: dict[str, object], name: str) -> str:
    if name == "hour":
        return f"{row['day']}T{row['hour']:02}:00Z"
    return str(row[_COLUMNS.get(name, name)])

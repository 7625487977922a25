"""A tenant's saving over a dedicated endpoint for each of its adapters.

    dedicated = the tenant's adapter-hours x price of the machine that one adapter alone would need
    paid      = cost of the tenant's calls and hosting on the same days
    saving    = 1 - paid / dedicated

The operator's machine costs are in no figure: a tenant compares what it pays with what it would pay.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection
from django.db.models import Max, QuerySet

from controlplane.billing.quantities import adapter_name
from controlplane.billing.reports.instance_rates import InstancePrices, InstanceRate, price_on, saved_percent
from controlplane.billing.reports.models import InstancePrice
from controlplane.billing.reports.savings import TIERS
from controlplane.billing.selectors import hosting_booked_nano
from controlplane.billing.unpriced import usage_unpriced
from controlplane.billing.usage_report import usage_report
from controlplane.errors import InvalidInputError
from controlplane.metering.hosting.report import hosting_hours
from controlplane.metering.models import HostingHour, HostingKind
from controlplane.tenants.models import Tenant

TENANT_FORMULA: Final = "saving = 1 - paid / dedicated; dedicated = adapter-hours x price of dedicated_type"
MOST_SHOWN: Final = 100
_MOST_DAYS: Final = 31


@dataclass(frozen=True, slots=True)
class VersionSaving:
    """Hosting of one adapter version of the tenant, and the cost of a dedicated endpoint for it."""

    adapter: str
    engine_name: str
    seconds: int
    dedicated_nano: int


@dataclass(frozen=True, slots=True)
class TenantSaving:
    """Costs of dedicated endpoints and of the platform, in nano-units.

    `percent` is decimal text. It is None without a dedicated cost, or if some usage has no price.

    Attributes:
        price: of the dedicated machine on the first day.
        versions: the `MOST_SHOWN` versions with the most hours.
        unpriced: some calls or hosting have no price, so the real cost is above `paid_nano`.
    """

    adapter_seconds: int
    dedicated_nano: int
    paid_nano: int
    currency: str
    price: InstanceRate
    versions: tuple[VersionSaving, ...]
    unpriced: bool

    @property
    def percent(self) -> str | None:
        return None if self.unpriced else saved_percent(self.paid_nano, of_nano=self.dedicated_nano)


def machines_priced(*, day: dt.date, region: str) -> list[InstanceRate]:
    """Return instance types with a price in the region on the day, the cheapest first."""
    prices = InstancePrices()
    types = InstancePrice.objects.filter(region=region).order_by().values_list("instance_type", flat=True)
    found = [prices.on(day, instance_type=name, region=region) for name in set(types)]
    return sorted(
        (price for price in found if price is not None),
        key=lambda price: (price.hour_nano, price.instance_type),
    )


def tenant_saving(
    *, tenant: Tenant, start: dt.date, end: dt.date, dedicated_type: str, region: str, tier: str
) -> TenantSaving:
    """Return the tenant's saving on the UTC days `start` to `end`, both included.

    Args:
        dedicated_type: instance type that each adapter version would have run on alone; '' for the cheapest
            one with a price, which claims the least.
        tier: which adapters count: `placed` on deployments, or `stored`, which is all that could be called.

    Raises InvalidInputError: days in the wrong order or too many, an unknown tier, a type without price, or a
    price in another currency than the tenant is billed in.
    """
    if not dt.timedelta(0) <= end - start < dt.timedelta(days=_MOST_DAYS):
        raise InvalidInputError(
            f"end must be 0 to {_MOST_DAYS - 1} days after start: split longer periods", field="end"
        )
    if tier not in TIERS:
        raise InvalidInputError(f"tier must be one of {', '.join(TIERS)}", field="tier")
    instance_type = dedicated_type or _cheapest(start, region)
    prices = InstancePrices()
    price = price_on(prices, start, instance_type, region, field="dedicated_type")
    report = usage_report(tenant=tenant, start=start, end=end, group_by=())
    paid = hosting_booked_nano(tenant=tenant.pk, start=start, end=end) + report.priced_nano
    hours = _hosted_seconds(tenant.pk, start, end, tier)
    days = _seconds_by_day(hours)
    prices_by_day = {
        day: price_on(prices, day, instance_type, region, field="dedicated_type") for day in days
    }
    if {report.currency} != {price.currency, *(each.currency for each in prices_by_day.values())}:
        raise InvalidInputError(
            f"{instance_type} is priced in a currency other than {report.currency}, your billing currency",
            field="dedicated_type",
        )
    dedicated = sum(prices_by_day[day].cost_nano(seconds) for day, seconds in days.items())
    return TenantSaving(
        sum(days.values()),
        dedicated,
        paid,
        price.currency,
        price,
        tuple(_versions(hours, prices_by_day)),
        report.total.unpriced or usage_unpriced(tenant=tenant.pk, start=start, end=end),
    )


def _cheapest(day: dt.date, region: str) -> str:
    found = machines_priced(day=day, region=region)
    if not found:
        raise InvalidInputError(
            f"no machine has a price in {region[:30]!r} on {day}: ask your operator to add one",
            field="dedicated_type",
        )
    return found[0].instance_type


def _hosted_seconds(tenant: str, start: dt.date, end: dt.date, tier: str) -> QuerySet[HostingHour, Any]:
    """Return hosted seconds by day, hour and version; the longest of several deployments counts."""
    hours = hosting_hours(tenant=tenant, start=start, end=end).filter(kind=HostingKind.ADAPTER, tier=tier)
    return hours.order_by().values("day", "hour", "adapter").annotate(seconds=Max("quantity_seconds"))


def _summed(hours: QuerySet[HostingHour, Any], sql_template: str) -> list[tuple[Any, ...]]:
    """Sum the hourly rows in the database: 10,000 adapters have millions of them in a month."""
    sql, parameters = hours.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(sql_template.format(hours=f"({sql}) AS hours"), parameters)
        return [*cursor.fetchall()]


def _seconds_by_day(hours: QuerySet[HostingHour, Any]) -> dict[dt.date, int]:
    found = _summed(hours, "SELECT day, sum(seconds) FROM {hours} GROUP BY day")
    return {_day(day): int(seconds) for day, seconds in found}


def _versions(
    hours: QuerySet[HostingHour, Any], prices_by_day: Mapping[dt.date, InstanceRate]
) -> Iterator[VersionSaving]:
    """The `MOST_SHOWN` versions with the most hours."""
    longest = "SELECT adapter, sum(seconds) FROM {hours} GROUP BY adapter ORDER BY 2 DESC, 1 LIMIT "
    names = [name for name, _ in _summed(hours, f"{longest}{MOST_SHOWN}")]
    days: dict[str, dict[dt.date, int]] = {name: {} for name in names}
    by_day = "SELECT adapter, day, sum(seconds) FROM {hours} GROUP BY adapter, day"
    for name, day, seconds in _summed(hours.filter(adapter__in=names), by_day) if names else ():
        days[name][_day(day)] = int(seconds)
    for name, seconds_of in days.items():
        dedicated = sum(prices_by_day[day].cost_nano(seconds) for day, seconds in seconds_of.items())
        yield VersionSaving(adapter_name(name), name, sum(seconds_of.values()), dedicated)


def _day(value: dt.date | str) -> dt.date:
    """Parse the day, which SQLite returns as text."""
    return value if isinstance(value, dt.date) else dt.date.fromisoformat(value)

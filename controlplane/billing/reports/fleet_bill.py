"""The fleet's machine cost by day, and its attribution to tenants."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django.db.models import F, Sum

from controlplane.billing.reports.instance_rates import InstancePrices
from controlplane.deployments.models import Copy
from controlplane.errors import InvalidInputError
from controlplane.metering.hosting.report import hosting_hours
from controlplane.metering.models import HostingKind
from controlplane.metering.selectors import rollup_list
from controlplane.tenants.models import ApiKey

BY: Final = ("tokens", "time", "memory")
NOBODY: Final = ""
"""Receives the bill of days on which no tenant has a claim."""
_MOST_DAYS: Final = 92
"""A quarter, as in the hosting report. Whole days are divided, so that parts of longer ranges add up."""


@dataclass(frozen=True, slots=True)
class FleetBill:
    """Nano-units by day, of machines that have a price.

    Attributes:
        currency: of all the prices; "" if no machine has one.
        unpriced: instance types without a price on some day on which they ran.
    """

    days: Mapping[dt.date, int]
    currency: str
    unpriced: tuple[str, ...]

    @property
    def total(self) -> int:
        return sum(self.days.values())


def fleet_bill(*, start: dt.date, end: dt.date, region: str) -> FleetBill:
    """Return the cost of machine-hours of the UTC days `start` to `end`, both included.

    Amounts use `region`'s prices and are rounded half up once per day and instance type.

    Raises InvalidInputError if the prices have several currencies.
    """
    prices = InstancePrices()
    hours = hosting_hours(tenant=None, start=start, end=end).filter(kind=HostingKind.INSTANCE)
    days: dict[dt.date, int] = defaultdict(int)
    currencies, unpriced = set[str](), set[str]()
    for row in hours.values("day", "instance_type").annotate(seconds=Sum("quantity_seconds")).order_by():
        price = prices.on(row["day"], instance_type=row["instance_type"], region=region)
        if price is None:
            unpriced.add(row["instance_type"])
            continue
        currencies.add(price.currency)
        days[row["day"]] += price.cost_nano(int(row["seconds"]))
    if len(currencies) > 1:
        raise InvalidInputError(
            f"instance prices are in {' and '.join(sorted(currencies))}: choose days with a single currency",
            field="start",
        )
    return FleetBill(dict(days), next(iter(currencies), ""), tuple(sorted(unpriced)))


@dataclass(frozen=True, slots=True)
class Attribution:
    """The bill's parts by tenant, which add up to it exactly; NOBODY has the days without a claim."""

    bill: FleetBill
    parts: Mapping[str, int]


def fleet_attribution(*, start: dt.date, end: dt.date, region: str, by: str) -> Attribution:
    """Divide each day's bill among the tenants in proportion to their usage of that day.

    Args:
        by: `tokens` (of calls to endpoints: prompt and completion, cached ones too), `time` (seconds of
            placed adapters) or `memory` (bytes of adapters' files times seconds).

    Raises InvalidInputError: days in the wrong order or too many, an unknown measure, or prices of several
    currencies.
    """
    if not dt.timedelta(0) <= end - start < dt.timedelta(days=_MOST_DAYS):
        raise InvalidInputError(
            f"end must be 0 to {_MOST_DAYS - 1} days after start: split longer periods and add up the "
            "results",
            field="end",
        )
    if by not in BY:
        raise InvalidInputError(f"by must be one of {', '.join(BY)}", field="by")
    bill = fleet_bill(start=start, end=end, region=region)
    claims = _tokens(start, end) if by == "tokens" else _held(start, end, by)
    parts: dict[str, int] = defaultdict(int)
    for day, total in bill.days.items():
        weights = claims.get(day, {})
        for tenant, part in divide(total, weights if any(weights.values()) else {NOBODY: 1}).items():
            parts[tenant] += part
    return Attribution(bill, dict(parts))


def divide(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Divide `total` in proportion to `weights`, by largest remainders; the parts add up to it exactly.

    Each part differs from its exact share by less than one. Of equal remainders the first name gets the odd
    unit, so the same weights always give the same parts.

    Args:
        total: 0 or more.
        weights: 0 or more each; if all are 0, they count as equal.

    Raises ValueError for a negative number, and for a total above 0 without weights.
    """
    if total < 0 or any(weight < 0 for weight in weights.values()):
        raise ValueError("amounts and weights must be 0 or more")
    if not weights:
        if total:
            raise ValueError(f"cannot divide {total} without weights")
        return {}
    claims = weights if any(weights.values()) else dict.fromkeys(weights, 1)
    whole = sum(claims.values())
    parts = {name: total * weight // whole for name, weight in claims.items()}
    remainders = sorted(claims, key=lambda name: (-(total * claims[name] % whole), name))
    for name in remainders[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


Claims = Mapping[dt.date, Mapping[str, int]]


def _tokens(start: dt.date, end: dt.date) -> Claims:
    """Tokens by day and tenant of calls to SageMaker endpoints, whose machines the bill covers.

    Usage that external fleets report is left out, whatever backend they name.
    """
    ran = rollup_list(tenant=None, start=start, end=end).filter(backend=Copy.Kind.SAGEMAKER)
    scopes = ApiKey.objects.values_list("pk", "scopes")
    reporters = [key for key, opens in scopes if ApiKey.Scope.INFERENCE not in opens]
    rows = ran.exclude(key_id__in=reporters).values("day", "tenant").order_by()
    return _by_day(rows.annotate(total=Sum(F("prompt_tokens") + F("completion_tokens"))))


def _held(start: dt.date, end: dt.date, by: str) -> Claims:
    hours = hosting_hours(tenant=None, start=start, end=end).exclude(tenant="")
    if by == "time":
        hours = hours.filter(kind=HostingKind.ADAPTER, tier="placed")
    else:
        hours = hours.filter(kind=HostingKind.STORAGE)
    rows = hours.values("day", "tenant").order_by()
    return _by_day(rows.annotate(total=Sum("quantity_seconds")))


def _by_day(rows: object) -> Claims:
    found: dict[dt.date, dict[str, int]] = defaultdict(dict)
    for row in rows:  # type: ignore[attr-defined]  # a query of dictionaries
        found[row["day"]][row["tenant"]] = int(row["total"])
    return found

"""Hosting time: a tenant's adapters and their files; for staff the whole fleet."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from django.http import HttpRequest, HttpResponse

from controlplane.billing import items
from controlplane.billing.hosting_costs import HostingCost, hosting_costs
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import adapter_name
from controlplane.console.amounts import hours_text
from controlplane.console.day_range import DAYS_30, presets_shown, range_asked
from controlplane.console.form_errors import FormErrors
from controlplane.console.pages import staff_page, tenant_page
from controlplane.metering.hosting.report import HostingRow, hosting_report
from controlplane.metering.models import HostingKind
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

SHOWN: Final = 200
"""Most rows of adapters or tenants, by cost or hours."""
_FLEET: Final = (HostingKind.COPY, HostingKind.GPU, HostingKind.INSTANCE, HostingKind.OPTIMIZATION)


@dataclass(slots=True)
class Hosted:
    """A row of the tenant's page.

    Attributes:
        amounts: quantity by item, with `stored` for hours of adapters that were ready to be called.
        nano: billed nano-units; None if part of it has no price.
        billed: True if any of it is billed.
    """

    adapter: str
    base_model: str
    amounts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    nano: int | None = 0
    billed: bool = False

    def hours(self) -> dict[str, str]:
        """Hours by item as decimal text, to a millionth."""
        return {
            item: hours_text(self.amounts[item], items.PER.get(item, 3600))
            for item in (*sorted(items.TIMED), "stored")
        }

    def add(self, cost: HostingCost) -> None:
        """Add the cost of one kind of hosting time."""
        self.amounts[cost.item] += cost.quantity
        self.billed |= cost.billed
        self.nano = None if self.nano is None or cost.nano is None else self.nano + cost.nano


@tenant_page(read=Permission.BILLING_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show adapter-hours and GB-hours of the tenant's adapters, and their cost."""
    with FormErrors(request) as errors:
        start, end = range_asked(request)
        lines, total = _hosted(tenant.pk, start, end)
    if errors:
        start, end = DAYS_30.dates
        lines, total = _hosted(tenant.pk, start, end)
    lines.sort(key=lambda line: (line.nano is not None, -(line.nano or 0), line.adapter, line.base_model))
    context = {
        "start": start,
        "end": end,
        "presets": presets_shown(request),
        "currency": PriceList.load().currency(),
        "total": total,
        "sums": total.hours(),
        "lines": [(line, line.hours()) for line in lines[:SHOWN]],
        "left_out": max(0, len(lines) - SHOWN),
    }
    return errors.render("console/hosting.html", context)


@staff_page("GET")
def fleet(request: HttpRequest) -> HttpResponse:
    """Show copy-, GPU- and machine-hours of deployments, and hosting time by tenant."""
    groups = ("deployment", "base", "instance_type")
    with FormErrors(request) as errors:
        start, end = range_asked(request)
        runs = hosting_report(tenant=None, start=start, end=end, group_by=groups)
    if errors:
        start, end = DAYS_30.dates
        runs = hosting_report(tenant=None, start=start, end=end, group_by=groups)
    held = hosting_report(tenant=None, start=start, end=end, group_by=("tenant", "tier"))
    tenants = [row for row in held if row.kind in (HostingKind.ADAPTER, HostingKind.STORAGE)]
    tenants.sort(key=lambda row: (row.kind, row.group["tier"], -row.quantity_seconds, row.group["tenant"]))
    context = {
        "start": start,
        "end": end,
        "presets": presets_shown(request),
        "totals": _totals(row for row in held if row.kind in _FLEET),
        "runs": [row for row in runs if row.kind in _FLEET],
        "tenants": tenants[:SHOWN],
        "left_out": max(0, len(tenants) - SHOWN),
    }
    return errors.render("staff/hosting.html", context)


def _hosted(tenant: str, start: dt.date, end: dt.date) -> tuple[list[Hosted], Hosted]:
    """Return rows by adapter and base model, and their sum."""
    stored = hosting_report(tenant=tenant, start=start, end=end, group_by=("adapter", "base", "tier"))
    found: dict[tuple[str, str], Hosted] = {}
    total = Hosted("", "")
    for row in stored:
        if row.kind == HostingKind.ADAPTER and row.group["tier"] == "stored":
            key = adapter_name(row.group["adapter"]), row.group["base"]
            found.setdefault(key, Hosted(*key)).amounts["stored"] += row.quantity_seconds
            total.amounts["stored"] += row.quantity_seconds
    for cost in hosting_costs(tenant=tenant, start=start, end=end):
        key = cost.adapter, cost.base_model
        found.setdefault(key, Hosted(*key)).add(cost)
        total.add(cost)
    return list(found.values()), total


def _totals(rows: Iterable[HostingRow]) -> list[tuple[str, str, str]]:
    """Return (kind, hours, unit) of each shown kind, also if it is 0."""
    sums: dict[str, int] = defaultdict(int)
    for row in rows:
        sums[row.kind] += row.quantity_seconds
    return [(kind.value, hours_text(sums[kind]), str(kind.label)) for kind in _FLEET]

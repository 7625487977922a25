"""The traffic part of the adapter's page: requests by version and alias, with errors and latency."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from functools import lru_cache
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from contracts.adapters.reference import EngineName
from contracts.errors import ContractError
from controlplane.adapters.selectors import adapter_get
from controlplane.console.adapters.traffic_figures import MEASURES, SPANS, adapter_traffic
from controlplane.console.chart_axes import HEIGHT, WIDTH
from controlplane.console.pages import tenant_page
from controlplane.metering.adapter_use import NEWEST, adapter_requests
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

SHARE_DAYS: Final = 7
"""Days of the shares on the adapter list."""
_MOST_NAMES: Final = 200


@tenant_page(read=Permission.USAGE_READ)
def part(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Return the part, loaded after the page, since sums can be large; unknown parameters use defaults."""
    adapter = adapter_get(tenant=tenant, name=name)
    spans = {str(days): days for days in SPANS}
    days = spans.get(request.GET.get("days", ""), SPANS[0])
    asked = request.GET.get("measure", "")
    measure = asked if asked in MEASURES else MEASURES[0]
    today = timezone.now().astimezone(dt.UTC).date()
    traffic = adapter_traffic(adapter=adapter, days=days, measure=measure, today=today)
    context = {
        "adapter": adapter,
        "traffic": traffic,
        "spans": SPANS,
        "width": WIDTH,
        "height": HEIGHT,
        "measures": list(zip(MEASURES, (_("Requests"), _("Tokens"), _("Errors")), strict=True)),
        "newest": NEWEST,
    }
    return render(request, "console/adapters/traffic.html", context)


@tenant_page(read=Permission.USAGE_READ)
def shares(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Return the share of the tenant's requests for each adapter in `?name=`, for the list.

    It is loaded after the page, since a tenant with thousands of adapters has large sums.
    """
    today = timezone.now().astimezone(dt.UTC).date()
    found = adapter_requests(tenant=tenant.pk, start=today - dt.timedelta(days=SHARE_DAYS - 1), end=today)
    requests: dict[str, int] = defaultdict(int)
    for engine, asked in found.items():
        requests[_adapter(engine)] += asked
    total = sum(requests.values())
    lines = [
        (name, requests.get(name, 0), requests.get(name, 0) / total if total else 0.0)
        for name in dict.fromkeys(request.GET.getlist("name")[:_MOST_NAMES])
    ]
    return render(request, "console/adapters/shares.html", {"lines": lines, "days": SHARE_DAYS})


# Each list repeats thousands of names, and an engine name always means the same adapter.
@lru_cache(maxsize=50_000)
def _adapter(engine: str) -> str:
    """Return the adapter's name in an engine name; '' for the base model or an invalid name."""
    try:
        return EngineName.parse(engine).adapter if engine else ""
    except ContractError:
        return ""

"""The monitoring pages: all adapters of a tenant, and one adapter, for its members and for staff."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.adapters.selectors import adapter_get, adapter_list, adapter_named
from controlplane.console.chart_axes import HEIGHT, WIDTH
from controlplane.console.monitoring.charts import charts_of
from controlplane.console.pages import staff_page, tenant_page
from controlplane.console.paging import page_of, searched
from controlplane.metering.adapter_metrics import (
    PERCENTILES,
    RANGES,
    Metrics,
    TimeRange,
    adapter_metrics,
    metrics_by_adapter,
)
from controlplane.monitoring.selectors import alarm_list_in_alarm, alarm_list_on
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get

_DEFAULT: Final = "day"
_OPERATOR: Final = "staff-"


@dataclass(frozen=True, slots=True)
class Row:
    """A table's row: a name, its link, and metrics with percentiles by name."""

    name: str
    metrics: Metrics
    link: str = ""

    @property
    def percentiles(self) -> list[tuple[str, list[float | None]]]:
        """Columns of both latencies with their percentiles."""
        shares = " / ".join(f"p{percent}" for percent in PERCENTILES)
        return [
            (f"{title} {shares}", [self.metrics.percentile_ms(metric, percent) for percent in PERCENTILES])
            for metric, title in (("ttft", "TTFT"), ("itl", "ITL"))
        ]

    @property
    def errors(self) -> Iterator[tuple[str, bool, int]]:
        """Yield (error code, whether the copy or the gateway was at fault, attempts), most frequent first."""
        for code, count in self.metrics.errors.most_common():
            yield code, True, count
        for code, count in self.metrics.client_errors.most_common():
            yield code, False, count


@tenant_page(read=Permission.ADAPTERS_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List the tenant's adapters with their metrics."""
    return _index(request, tenant, "")


@staff_page("GET")
def staff_index(request: HttpRequest, slug: str) -> HttpResponse:
    """List a tenant's adapters with their metrics, or show the one in `?adapter=`, for staff."""
    tenant = tenant_get(slug=slug)
    if name := request.GET.get("adapter"):
        return _adapter(request, tenant, name, _OPERATOR)
    return _index(request, tenant, _OPERATOR)


@tenant_page(read=Permission.ADAPTERS_READ)
def adapter(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Show one adapter's metrics, in total, over time and by copy."""
    return _adapter(request, tenant, name, "")


def _index(request: HttpRequest, tenant: Tenant, prefix: str) -> HttpResponse:
    span, now = _range(request), timezone.now()
    rows = adapter_list(tenant=tenant)
    if search := searched(request):
        rows = adapter_named(rows, search)
    page = page_of(request, rows)
    names = [item.name for item in page.rows]
    found = metrics_by_adapter(tenant=tenant.pk, adapters=names, span=span, now=now) if names else {}
    context = {
        **_context(tenant, span, prefix),
        "rows": [Row(name, found[name], _adapter_link(tenant, prefix, name, span)) for name in names],
        "columns": _columns(),
        "page": page,
        "search": search,
        "ringing": alarm_list_in_alarm(tenant=None if prefix else tenant, adapters_of=tenant),
    }
    return render(request, "console/monitoring/index.html", context)


def _adapter(request: HttpRequest, tenant: Tenant, name: str, prefix: str) -> HttpResponse:
    found_adapter = adapter_get(tenant=tenant, name=name)
    span = _range(request)
    found = adapter_metrics(tenant=tenant.pk, adapter=found_adapter.name, span=span, now=timezone.now())
    total = Row(found_adapter.name, found.total)
    context = {
        **_context(tenant, span, prefix),
        "adapter": found_adapter,
        "total": total,
        "ttft": [found.total.percentile_ms("ttft", percent) for percent in PERCENTILES],
        "itl": [found.total.percentile_ms("itl", percent) for percent in PERCENTILES],
        "charts": charts_of(found),
        "width": WIDTH,
        "height": HEIGHT,
        "columns": _columns(),
        "copies": [Row(copy, metrics) for copy, metrics in found.by_copy.items()],
        "times": [(at, Row("", metrics)) for at, metrics in reversed(found.over_time) if metrics.requests],
        "alarms": alarm_list_on(tenant=None if prefix else tenant, adapter=found_adapter),
        "start": found.start,
    }
    return render(request, "console/monitoring/adapter.html", context)


def _range(request: HttpRequest) -> TimeRange:
    return RANGES.get(request.GET.get("range", ""), RANGES[_DEFAULT])


def _columns() -> list[str]:
    return [name for name, _value in Row("", Metrics()).percentiles]


def _context(tenant: Tenant, span: TimeRange, prefix: str) -> dict[str, Any]:
    return {
        "shell": "staff/base.html" if prefix else "console/shell.html",
        "owner": tenant,
        "span": span,
        "ranges": [
            (RANGES["hour"], _("Last hour")),
            (RANGES["day"], _("Day")),
            (RANGES["week"], _("Week")),
            (RANGES["month"], _("Month")),
        ],
        "index_link": _link("monitoring", tenant, prefix),
        "alarms_link": reverse("console:staff-alarms") if prefix else _link("alarms", tenant, ""),
        "alarm_route": "console:staff-alarm" if prefix else "console:alarm",
        "is_staff_page": bool(prefix),
    }


def _adapter_link(tenant: Tenant, prefix: str, name: str, span: TimeRange) -> str:
    if prefix:
        query = urlencode({"adapter": name, "range": span.name})
        return f"{_link('monitoring', tenant, prefix)}?{query}"
    return f"{_link('monitoring-adapter', tenant, prefix, name)}?range={span.name}"


def _link(name: str, tenant: Tenant, prefix: str, *names: str) -> str:
    return reverse(f"console:{prefix}{name}", args=(tenant.pk, *names))

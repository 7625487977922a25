"""Usage: by day as a chart, by adapter as a table, and as CSV."""

from __future__ import annotations

import csv
import datetime as dt
from decimal import Decimal

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.billing.usage_report import UsageReport, usage_report
from controlplane.console.day_range import DEFAULT_DAYS, PRESETS, last_days, range_asked
from controlplane.console.pages import tenant_page
from controlplane.errors import InvalidInputError
from controlplane.limits.selectors import tenant_limits_get
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission


@require_GET
@tenant_page(Permission.USAGE_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The range's chart and table."""
    error = ""
    try:
        start, end = range_asked(request)
        days = usage_report(tenant=tenant, start=start, end=end, group_by=("day",))
    except InvalidInputError as wrong:
        error = str(wrong)
        start, end = last_days(DEFAULT_DAYS)
        days = usage_report(tenant=tenant, start=start, end=end, group_by=("day",))
    models = usage_report(tenant=tenant, start=start, end=end, group_by=("base", "adapter"))
    limits = tenant_limits_get(tenant=tenant)
    context = {
        "start": start,
        "end": end,
        "presets": [(n, last_days(n) == (start, end)) for n in PRESETS],
        "error": error,
        "total": days.total,
        "currency": days.currency,
        "rows": sorted(models.rows, key=lambda row: -(row.prompt_tokens + row.completion_tokens)),
        "chart": _series(days),
        "limits": limits if any(getattr(limits, name) is not None for name in limits.AMOUNTS) else None,
        "budget": None if limits.budget_nano is None else f"{limits.budget_nano * Decimal('1e-9'):f}",
    }
    return render(request, "console/usage.html", context, status=422 if error else 200)


@require_GET
@tenant_page(Permission.USAGE_READ)
def export(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The range as CSV, a line a day, base model, adapter and key."""
    groups = ("day", "base", "adapter", "key", "status")
    try:
        start, end = range_asked(request)
        report = usage_report(tenant=tenant, start=start, end=end, group_by=groups)
    except InvalidInputError as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    name = f"usage-{tenant.pk}-{start}-{end}.csv"
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    writer = csv.writer(response)
    sums = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    writer.writerow([*groups, *sums, "price", "currency"])
    for row in report.rows:
        price = "unpriced" if row.price is None else row.price
        amounts = [getattr(row, name) for name in sums]
        writer.writerow([*(row.group[group] for group in groups), *amounts, price, report.currency])
    return response


def _series(report: UsageReport) -> dict[str, object]:
    """Every day of the range, also those without use: what the chart draws."""
    rows = {row.group["day"]: row for row in report.rows}
    count = (report.end - report.start).days + 1
    days = [(report.start + dt.timedelta(days=offset)).isoformat() for offset in range(count)]
    found = [rows.get(day) for day in days]
    return {
        "days": days,
        "currency": report.currency,
        "requests": [row.requests if row else 0 for row in found],
        "input": [row.prompt_tokens - row.cached_tokens if row else 0 for row in found],
        "cached": [row.cached_tokens if row else 0 for row in found],
        "output": [row.completion_tokens if row else 0 for row in found],
        "price": [float(row.price) if row and row.price is not None else 0 for row in found],
    }

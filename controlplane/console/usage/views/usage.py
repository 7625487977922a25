"""The usage explorer: chart, table and exports by the URL's query; and days as CSV."""

from __future__ import annotations

import csv
import datetime as dt
from decimal import Decimal
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _

from controlplane.billing.price_list import PriceList
from controlplane.billing.usage_explorer import (
    BUCKETS,
    EXPLORED,
    MEASURES,
    Explored,
    Line,
    Question,
    measured,
    usage_explore,
)
from controlplane.billing.usage_report import UsageRow, usage_report
from controlplane.console.day_range import DAYS_30, presets_shown, range_asked
from controlplane.console.downloads import download
from controlplane.console.form_errors import FormErrors
from controlplane.console.pages import tenant_page
from controlplane.console.usage.query import all_lines, exported_json, exported_rows, question_of
from controlplane.errors import InvalidInputError
from controlplane.tenants.limits.selectors import tenant_limits_get
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_names


@tenant_page(read=Permission.USAGE_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show the chart and the table of the query."""
    prices = PriceList.load()
    with FormErrors(request) as errors:
        asked = question_of(request)
        found = usage_explore(tenant=tenant, asked=asked, prices=prices)
    if errors:
        asked = Question(*DAYS_30.dates)
        found = usage_explore(tenant=tenant, asked=asked, prices=prices)
    names = _names(tenant, asked, found)
    limits = tenant_limits_get(tenant=tenant)
    context = {
        **_state(request, asked),
        "asked": asked,
        "total": found.total,
        "change": _change(found.total, found.before, asked.measure),
        "before_start": found.before_start,
        "before_end": asked.start - dt.timedelta(days=1),
        "currency": found.currency,
        "lines": [_row(request, asked, line, names) | {"hue": at + 1} for at, line in enumerate(found.lines)],
        "others": found.others,
        "others_change": _change(found.others.row, found.others.before, asked.measure)
        if found.others
        else "",
        "count": found.count,
        "chart": _chart(found, asked, names),
        "limits": limits if any(getattr(limits, name) is not None for name in limits.AMOUNTS) else None,
    }
    return errors.render("console/usage.html", context)


@tenant_page(read=Permission.USAGE_READ)
@download
def explored(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Export the page's data as CSV or (`form=json`) JSON."""
    form = request.GET.get("form", "csv")
    if form not in ("csv", "json"):
        raise InvalidInputError(_("form must be csv or json"), field="form")
    asked = question_of(request)
    found = usage_explore(tenant=tenant, asked=asked, prices=PriceList.load())
    names = _names(tenant, asked, found)
    response: HttpResponse
    if form == "json":
        response = JsonResponse(exported_json(found, asked, names), json_dumps_params={"indent": 1})
    else:
        response = HttpResponse(content_type="text/csv; charset=utf-8")
        csv.writer(response).writerows(exported_rows(found, asked, names))
    name = f"usage-{tenant.pk}-by-{asked.group}-{asked.start}-{asked.end}.{form}"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@tenant_page(read=Permission.USAGE_READ)
@download
def export(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Export the range as CSV, a row per day, base model, adapter, key and status."""
    groups = ("day", "base", "adapter", "key", "status")
    start, end = range_asked(request)
    report = usage_report(tenant=tenant, start=start, end=end, group_by=groups)
    name = f"usage-{tenant.pk}-{start}-{end}.csv"
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    writer = csv.writer(response)
    sums = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    writer.writerow([*groups, *sums, "price", "currency", "reasoning_tokens", "images"])
    for row in report.rows:
        price = "unpriced" if row.price is None else row.price
        amounts = [getattr(row, name) for name in sums]
        groups_of_row = [row.group[group] for group in groups]
        added = [row.reasoning_tokens, row.images]
        writer.writerow([*groups_of_row, *amounts, price, report.currency, *added])
    return response


def _state(request: HttpRequest, asked: Question) -> dict[str, Any]:
    """Return the query's state for the form and its links."""

    def without(name: str) -> str:
        query = request.GET.copy()
        query.setlist("none", [other for other in query.getlist("none") if other != name])
        query.pop(name, None)
        return f"?{query.urlencode()}"

    return {
        "presets": presets_shown(request),
        "groups": EXPLORED,
        "buckets": BUCKETS,
        "measures": MEASURES,
        "only": [(name, value, without(name)) for name, value in asked.only.items()],
        "fields": [(name, asked.only.get(name, "")) for name in EXPLORED],
        "nothing_of": [name for name, value in asked.only.items() if not value],
    }


def _names(tenant: Tenant, asked: Question, found: Explored) -> dict[str, str]:
    if asked.group != "key":
        return {}
    return api_key_names(tenant=tenant.pk, public_ids=[line.value for line in found.lines])


def _title(line: Line, asked: Question, names: dict[str, str]) -> str:
    if line.value:
        return names.get(line.value, line.value)
    return {"adapter": _("base model"), "version": _("base model"), "alias": _("no alias")}.get(
        asked.group, "–"
    )


def _row(request: HttpRequest, asked: Question, line: Line, names: dict[str, str]) -> dict[str, Any]:
    return {
        "line": line,
        "name": _title(line, asked, names),
        "drill": _drill(request, asked, line),
        "change": _change(line.row, line.before, asked.measure),
    }


def _drill(request: HttpRequest, asked: Question, line: Line) -> str:
    """Return the query of the same page for this group alone, grouped by the next most useful column."""
    query = request.GET.copy()
    query[asked.group] = line.value
    if not line.value:
        query.appendlist("none", asked.group)
    query["group"] = {"adapter": "version", "version": "key", "key": "adapter"}.get(asked.group, "adapter")
    return f"?{query.urlencode()}"


def _change(now: UsageRow, before: UsageRow, measure: str) -> str:
    """Return the change from the period before in percent; '' if that was 0, or a price is unknown."""
    amount, was = measured(now, measure), measured(before, measure)
    if amount is None or not was:
        return ""
    return f"{(amount - was) * 100 / was:+.1f} %"


def _chart(found: Explored, asked: Question, names: dict[str, str]) -> dict[str, object]:
    """Return each line over time, as the script draws it."""
    return {
        "times": found.times,
        "bucket": asked.bucket,
        "measure": asked.measure,
        "currency": found.currency,
        "unpriced": _("unpriced"),
        "series": [
            {
                "name": _("Others") if line is found.others else _title(line, asked, names),
                "values": [_drawn(measured(row, asked.measure)) for row in line.series],
            }
            for line in all_lines(found)
        ],
    }


def _drawn(amount: Decimal | None) -> float | None:
    """Return a bar's height; None without a price, for no bar and a label instead of an amount."""
    return None if amount is None else float(amount)

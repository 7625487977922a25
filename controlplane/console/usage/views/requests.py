"""The request log: requests by filter, and one request by its id."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from contracts.usage_event import STATUSES
from controlplane.billing.price_list import PriceList
from controlplane.billing.request_costs import requests_nano
from controlplane.console.day_range import UP_TO_A_MONTH, WEEK, presets_shown, range_asked
from controlplane.console.form_errors import FormErrors
from controlplane.console.pages import tenant_page
from controlplane.console.usage.request_rows import request_rows
from controlplane.metering.prompt_log.selectors import is_kept
from controlplane.metering.requests import (
    MOST_DAYS,
    SEARCHED,
    RequestFilter,
    RequestPage,
    request_attempts,
    request_page,
)
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

SHOWN: Final = 50
_TEXTS: Final = ("project", "key", "model", "adapter", "alias", "status", "error_code")


@tenant_page(read=Permission.USAGE_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List the newest matching requests; `?before=<event>` continues the list."""
    page, prices = RequestPage((), ""), PriceList.load()
    wanted = RequestFilter(*WEEK.dates)
    before = request.GET.get("before", "")
    with FormErrors(request) as errors:
        texts = {name: request.GET.get(name, "").strip()[:200] for name in _TEXTS}
        start, end = range_asked(request, default=WEEK, choices=UP_TO_A_MONTH)
        wanted = RequestFilter(start, end, **texts)
        page = request_page(tenant=tenant.pk, wanted=wanted, before=before, size=SHOWN)
    context = {
        "rows": request_rows(tenant=tenant.pk, events=page.rows, prices=prices),
        "currency": prices.currency(),
        "older": page.older,
        "searched": SEARCHED if page.older and len(page.rows) < SHOWN else None,
        "is_first": not before,
        "wanted": wanted,
        "presets": presets_shown(request, default=WEEK, choices=UP_TO_A_MONTH),
        "statuses": STATUSES,
        "most_days": MOST_DAYS,
        "kept_days": settings.GRAFTWORK.usage_keep_days,
    }
    return errors.render("console/requests/index.html", context)


@tenant_page(read=Permission.USAGE_READ)
def detail(request: HttpRequest, tenant: Tenant, request_id: str) -> HttpResponse:
    """Show one request with its attempts, by the `x-request-id` of its answer."""
    events, prices = request_attempts(tenant=tenant.pk, request_id=request_id), PriceList.load()
    context = {
        "request_id": request_id,
        "rows": request_rows(tenant=tenant.pk, events=events, prices=prices),
        "nano": requests_nano(events, prices),
        "currency": prices.currency(),
        "is_kept": is_kept(tenant=tenant, request_id=request_id),
        "kept_until": events[0].day + dt.timedelta(days=settings.GRAFTWORK.usage_keep_days),
    }
    return render(request, "console/requests/detail.html", context)

"""A part of the adapter's page: who called which version by which name, and how that went."""

from __future__ import annotations

import datetime as dt

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from controlplane.adapters.selectors import adapter_get
from controlplane.console.adapter_traffic import HEIGHT, MEASURES, SPANS, WIDTH, adapter_traffic
from controlplane.console.pages import tenant_page
from controlplane.metering.adapter_use import NEWEST
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission


@require_GET
@tenant_page(Permission.USAGE_READ)
def part(request: HttpRequest, tenant: Tenant, name: str) -> HttpResponse:
    """Asked for once the page is there: a busy tenant's sums are many. Unknown words are the first choice."""
    adapter = adapter_get(tenant=tenant, name=name)
    spans = {str(days): days for days in SPANS}
    days = spans.get(request.GET.get("days", ""), SPANS[0])
    asked = request.GET.get("measure", "")
    measure = asked if asked in MEASURES else MEASURES[0]
    today = timezone.now().astimezone(dt.UTC).date()
    traffic = adapter_traffic(adapter=adapter, days=days, measure=measure, today=today)
    context = {
        "adapter": adapter, "traffic": traffic, "spans": SPANS, "width": WIDTH, "height": HEIGHT,
        "measures": list(zip(MEASURES, (_("Requests"), _("Tokens"), _("Errors")), strict=True)),
        "newest": NEWEST,
    }  # fmt: skip
    return render(request, "console/adapters/traffic.html", context)

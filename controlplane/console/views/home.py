"""The first page: what runs, what was used, what to do next."""

from __future__ import annotations

import datetime as dt

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.adapters.selectors import adapter_list
from controlplane.billing.selectors import usage_report
from controlplane.catalog.selectors import base_model_list
from controlplane.console.pages import tenant_page
from controlplane.console.snippets import snippets
from controlplane.console.views.playground import KEY_NAME
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.selectors import api_key_list

DAYS = 7


@require_GET
@tenant_page
def home(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The tenant's overview and, until its first answer, the way there."""
    today = timezone.now().date()
    report = usage_report(tenant=tenant, start=today - dt.timedelta(days=DAYS - 1), end=today)
    adapters = list(adapter_list(tenant=tenant))
    ready = [adapter for adapter in adapters if adapter.default_version]
    bases = list(base_model_list().prefetch_related("copies"))
    keys = [key for key in api_key_list(tenant=tenant).exclude(name=KEY_NAME) if key.is_live]
    model = ready[0].name if ready else bases[0].name if bases else ""
    steps = (
        bool(ready),
        any(ApiKey.Scope.INFERENCE in key.scopes for key in keys),
        report.total.requests > 0,
    )
    context = {
        "days": DAYS,
        "total": report.total,
        "currency": report.currency,
        "adapters": adapters[:5],
        "adapter_count": len(adapters),
        "bases": bases,
        "checklist": None if all(steps) else {"adapter": steps[0], "key": steps[1], "request": steps[2]},
        "model": model,
        "snippets": snippets(model) if model else (),
    }
    return render(request, "console/home.html", context)

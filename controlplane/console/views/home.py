"""The first page: what runs, what was used, what to do next."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.adapters.models import Adapter
from controlplane.adapters.selectors import adapter_callable, adapter_list
from controlplane.billing.usage_report import usage_report
from controlplane.catalog.selectors import base_model_list
from controlplane.console.pages import tenant_page
from controlplane.console.snippets import snippets
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_list

DAYS: Final = 7
COUNTED: Final = 1000
_TELLING: Final = ("scopes", "revoked_at", "expires_at")
"""Columns that say whether a key calls models."""


@require_GET
@tenant_page(Permission.TENANT_READ)
def home(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The tenant's overview and, until its first answer, the way there."""
    today = timezone.now().date()
    report = usage_report(tenant=tenant, start=today - dt.timedelta(days=DAYS - 1), end=today)
    adapters = adapter_list(tenant=tenant)
    ready = adapter_callable(tenant=tenant).first()
    bases = list(base_model_list().prefetch_related("copies"))
    model = ready.name if ready else bases[0].name if bases else ""
    steps = (ready is not None, _has_key(tenant), report.total.requests > 0)
    context = {
        "days": DAYS,
        "total": report.total,
        "currency": report.currency,
        "adapters": adapters[:5],
        "adapter_count": _count(adapters),
        "bases": bases,
        "checklist": None if all(steps) else {"adapter": steps[0], "key": steps[1], "request": steps[2]},
        "model": model,
        "snippets": snippets(model) if model else (),
    }
    return render(request, "console/home.html", context)


def _count(adapters: QuerySet[Adapter]) -> str:
    """How many there are, counted as far as somebody might count by eye."""
    count = adapters[: COUNTED + 1].count()
    return str(count) if count <= COUNTED else f"{COUNTED}+"


def _has_key(tenant: Tenant) -> bool:
    """Whether an application could call models by now; it is rarely one of the oldest keys that can."""
    keys = api_key_list(tenant=tenant).exclude(name=ApiKey.PLAYGROUND).only(*_TELLING).select_related(None)
    return any(key.is_live and ApiKey.Scope.INFERENCE in key.scopes for key in keys.iterator(chunk_size=50))

"""The home page: usage, items that need attention, status, and the checklist of a new tenant."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.selectors import adapter_list, version_counts
from controlplane.billing.price_list import PriceList
from controlplane.catalog.models import BaseModel
from controlplane.catalog.selectors import base_model_list
from controlplane.console.adapters.snippets import snippets
from controlplane.console.bars import HEIGHT, WIDTH
from controlplane.console.billing.spend import budget_state
from controlplane.console.day_range import UP_TO_A_MONTH, WEEK, preset_asked, presets_shown
from controlplane.console.home.figures import home_figures
from controlplane.console.home.first_steps import FirstSteps, first_steps_of
from controlplane.console.home.to_do import to_do
from controlplane.console.pages import page_access, tenant_page
from controlplane.tenants.limits.selectors import tenant_limits_get
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission


@tenant_page(read=Permission.TENANT_READ)
def home(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show the tenant's overview of a range, by default the last 7 days."""
    access, prices, limits = page_access(request), PriceList.load(), tenant_limits_get(tenant=tenant)
    used = _used(request, tenant, prices)
    currency, a_day_nano = used["currency"], used["figures"].nano // used["days"]
    pays = access.may(Permission.BILLING_READ)
    budget = budget_state(limits=limits, prices=prices) if pays else None
    context = {
        **used,
        "presets": presets_shown(request, default=WEEK, choices=UP_TO_A_MONTH),
        "budget_state": budget,
        "to_do": to_do(access=access, limits=limits, budget=budget, currency=currency, a_day_nano=a_day_nano),
        "statuses": _statuses(tenant),
        "adapters": adapter_list(tenant=tenant)[:5],
        "bases": [(base, _copies(base, tenant)) for base in base_model_list()],
        **_steps(first_steps_of(tenant)),
    }
    return render(request, "console/home.html", context)


@tenant_page(read=Permission.TENANT_READ)
def figures(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Return the figures, which the page polls."""
    return render(request, "console/home_figures.html", _used(request, tenant, PriceList.load()))


@tenant_page(read=Permission.TENANT_READ)
def first_steps(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Return the checklist, which the page polls until it is complete."""
    return render(request, "console/first_steps.html", {**_steps(first_steps_of(tenant)), "polled": True})


def _used(request: HttpRequest, tenant: Tenant, prices: PriceList) -> dict[str, Any]:
    """Return the figures' context for the range of the request."""
    preset = preset_asked(request, default=WEEK, choices=UP_TO_A_MONTH)
    start, end = preset.dates
    found, report = home_figures(tenant=tenant, start=start, end=end, prices=prices)
    return {
        "preset": preset,
        "days": (end - start).days + 1,
        "figures": found,
        "total": report.total,
        "currency": report.currency,
        "width": WIDTH,
        "height": HEIGHT,
    }


def _steps(steps: FirstSteps) -> dict[str, Any]:
    return {"steps": steps, "model": steps.model, "snippets": snippets(steps.model) if steps.model else ()}


def _statuses(tenant: Tenant) -> list[tuple[str, int]]:
    """Count the versions in each status, in the order of their life cycle."""
    counts = version_counts(tenant=tenant)
    return [(str(status), counts.get(status.value, 0)) for status in AdapterVersion.Status]


def _copies(base_model: BaseModel, tenant: Tenant) -> int:
    """Return how many copies can serve the tenant: others' merged adapters are theirs alone."""
    merged = [copy.merged_adapter for copy in base_model.copies.all()]
    return sum(not name or name.startswith(f"t_{tenant.pk}.") for name in merged)

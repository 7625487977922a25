"""Savings of shared machines, for staff and for a tenant, and the price of a million tokens."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from rest_framework import serializers

from controlplane.billing.price_list import PriceList
from controlplane.billing.reports.api import (
    REGION,
    BlendedQuery,
    EstimateQuery,
    InstanceSavingQuery,
    SavingsQuery,
)
from controlplane.billing.reports.instance_rates import InstanceSaving, instance_saving
from controlplane.billing.reports.models import HOUR, Plan
from controlplane.billing.reports.savings import (
    TIERS,
    Saving,
    blended_prices,
    saving_estimate,
    saving_measured,
)
from controlplane.billing.reports.savings_api import TenantSavingQuery
from controlplane.billing.reports.tenant_savings import (
    MOST_SHOWN,
    TENANT_FORMULA,
    TenantSaving,
    machines_priced,
    tenant_saving,
)
from controlplane.console.amounts import hours_text
from controlplane.console.day_range import preset_asked, presets_shown
from controlplane.console.form_errors import FormErrors, parsed
from controlplane.console.pages import staff_page, tenant_page
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

_FIELDS: Final = ("start", "end", "region", "dedicated_type", "tier")


@tenant_page(read=Permission.BILLING_READ)
def tenant_savings(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show the saving compared to a separate endpoint for each of the tenant's adapters.

    The range of days, by default the last 30, and the other fields are the REST API's.
    """
    given = {name: text for name in _FIELDS if (text := request.GET.get(name, "").strip())}
    if "start" not in given and "end" not in given:
        given["start"], given["end"] = map(str, preset_asked(request).dates)
    errors, saving = FormErrors(request), None
    values: dict[str, Any] = {}
    with errors:
        values = parsed(TenantSavingQuery, given)
    values = values or parsed(TenantSavingQuery, {})
    machines = machines_priced(day=values["start"], region=values["region"])
    if machines and not errors:
        with errors:
            saving = tenant_saving(tenant=tenant, **values)
    context = {
        "values": {**{name: str(value) for name, value in values.items()}, **given},
        "presets": presets_shown(request),
        "machines": machines,
        "tiers": TIERS,
        "region": REGION,
        **_tenant_saving_context(saving),
        "most": MOST_SHOWN,
        "formula": TENANT_FORMULA,
    }
    return errors.render("console/savings.html", context)


def _tenant_saving_context(saving: TenantSaving | None) -> dict[str, Any]:
    if saving is None:
        return {"saving": None, "rows": [], "hours": ""}
    rows = [(row, _hours(row.seconds)) for row in saving.versions]
    return {"saving": saving, "rows": rows, "hours": _hours(saving.adapter_seconds)}


def _hours(seconds: int) -> str:
    return f"{Decimal(seconds) / HOUR:,.2f}"


@staff_page("GET")
def index(request: HttpRequest) -> HttpResponse:
    """Show measured and estimated savings, and how two instance types' rates differ, each on request."""
    answers = {
        "measured": _answer(request, "measured", SavingsQuery, _measured),
        "estimate": _answer(request, "estimate", EstimateQuery, _estimate),
        "instances": _answer(request, "instances", InstanceSavingQuery, _instances),
    }
    context = answers | {"tiers": TIERS, "plans": Plan.choices, "values": request.GET.dict()}
    status = 422 if any(answer["errors"] for answer in answers.values()) else 200
    return render(request, "staff/savings.html", context, status=status)


@staff_page("GET")
def blended(request: HttpRequest) -> HttpResponse:
    """Show a million tokens' price, from a machine's price and throughput, and from token prices."""
    found = _answer(request, "blended", BlendedQuery, _blended)
    context = {"found": found, "values": request.GET.dict(), "region": REGION, "plans": Plan.choices}
    return render(request, "staff/blended_price.html", context, status=422 if found["errors"] else 200)


def _answer(
    request: HttpRequest, form: str, kind: type[serializers.Serializer[Any]], answer: Callable[..., Any]
) -> dict[str, Any]:
    """Return `answer`'s result for the form, or its errors by field; neither if another form was sent.

    The fields and error texts are those of the REST API.
    """
    errors, result = FormErrors(request), None
    if request.GET.get("form") == form:
        with errors:
            given = {name: value.strip() for name, value in request.GET.dict().items()}
            result = answer(**parsed(kind, given))
    return {"result": result, "errors": errors}


def _measured(**values: Any) -> dict[str, Any]:
    return _saving_context(saving_measured(**values))


def _estimate(**values: Any) -> dict[str, Any]:
    return _saving_context(saving_estimate(**{"day": timezone.now().date()} | values))


def _instances(**values: Any) -> InstanceSaving:
    return instance_saving(**{"day": timezone.now().date()} | values)


def _saving_context(saving: Saving) -> dict[str, Any]:
    return {"saving": saving, "adapter_hours": hours_text(saving.adapter_seconds)}


def _blended(**values: Any) -> dict[str, Any]:
    found = blended_prices(day=timezone.now().date(), **values)
    return {
        "price": found.price,
        "by_throughput": found.by_throughput,
        "throughput": f"{found.throughput:.3f}",
        "by_list_price": found.by_list_price,
        "discount": f"{found.discount * 100:.2f}" if found.discount else "",
        "book_currency": PriceList.load().currency(),
    }

"""A tenant's savings compared to a separate endpoint for each of its adapters."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.billing.reports.api import REGION
from controlplane.billing.reports.models import HOUR
from controlplane.billing.reports.savings import TIERS
from controlplane.billing.reports.savings_api import TenantSavingQuery
from controlplane.billing.reports.tenant_savings import (
    MOST_SHOWN,
    TENANT_FORMULA,
    TenantSaving,
    machines_priced,
    tenant_saving,
)
from controlplane.console.pages import tenant_page
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

_FIELDS: Final = ("start", "end", "region", "dedicated_type", "tier")


@require_GET
@tenant_page(Permission.BILLING_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show the saving of a range of days, by default the last 30; the fields are the REST API's."""
    given = {name: text for name in _FIELDS if (text := request.GET.get(name, "").strip())}
    query = TenantSavingQuery(data=given)
    errors: dict[str, str] = {}
    saving: TenantSaving | None = None
    if not query.is_valid():
        errors = {name: str(texts[0]) for name, texts in query.errors.items()}
        query = TenantSavingQuery(data={})
        query.is_valid(raise_exception=True)
    values: dict[str, Any] = query.validated_data
    machines = machines_priced(day=values["start"], region=values["region"])
    if machines and not errors:
        try:
            saving = tenant_saving(tenant=tenant, **values)
        except InvalidInputError as error:
            errors = {error.field or "form": str(error)}
    context = {
        "values": {**{name: str(value) for name, value in values.items()}, **given},
        "machines": machines,
        "tiers": TIERS,
        "region": REGION,
        "saving": saving,
        "rows": [(row, _hours(row.seconds)) for row in saving.versions] if saving else [],
        "hours": _hours(saving.adapter_seconds) if saving else "",
        "most": MOST_SHOWN,
        "formula": TENANT_FORMULA,
        "errors": errors,
    }
    return render(request, "console/savings.html", context, status=422 if errors else 200)


def _hours(seconds: int) -> str:
    return f"{Decimal(seconds) / HOUR:,.2f}"

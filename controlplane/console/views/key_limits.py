"""What one key may use, within its tenant's limits."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from controlplane.billing.selectors import price_book_default
from controlplane.console.amounts import nano_entered
from controlplane.console.pages import field_errors, tenant_page
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.limits.models import ScopeLimits
from controlplane.limits.selectors import key_limits_get, tenant_limits_get
from controlplane.limits.services import key_limits_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_get

_WHOLE: Final = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
    "budget_alert_percent",
    "priority",
)
_NANO: Final = Decimal(10) ** 9


@require_http_methods(["GET", "POST"])
@tenant_page(Permission.KEYS_READ, Permission.KEYS_WRITE)
def detail(request: HttpRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    """The key's limits beside the tenant's; POST replaces them, and an empty field lifts one."""
    api_key = api_key_get(tenant=tenant, public_id=public_id)
    values, errors = _shown(key_limits_get(api_key=api_key)), {}
    if request.method == "POST":
        values = {name: request.POST.get(name, "").strip() for name in values}
        try:
            key_limits_set(api_key=api_key, **_entered(values))
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="key")
        else:
            messages.success(request, _("The limits are in force everywhere within a second."))
            return redirect("console:key-limits", tenant=tenant.pk, public_id=public_id)
    book = price_book_default()
    context = {
        "key": api_key,
        "values": values,
        "errors": errors,
        "most": _shown(tenant_limits_get(tenant=tenant)),
        "currency": book.currency if book else "USD",
    }
    return render(request, "console/keys/limits.html", context, status=422 if errors else 200)


def _shown(row: ScopeLimits) -> dict[str, str]:
    """As the form has it: empty for no limit, a budget in the currency's units."""
    shown = {name: "" if getattr(row, name) is None else str(getattr(row, name)) for name in _WHOLE}
    budget = "" if row.budget_nano is None else f"{Decimal(row.budget_nano) / _NANO:f}"
    return {**shown, "budget": budget, "budget_period": str(row.budget_period)}


def _entered(values: dict[str, str]) -> dict[str, Any]:
    """As the service takes it. Raises InvalidInputError."""
    entered: dict[str, Any] = {"budget_period": values["budget_period"] or ScopeLimits.Period.MONTH}
    for name in _WHOLE:
        if text := values[name]:
            if not (text.isascii() and text.isdigit() and len(text) < 20):
                raise InvalidInputError(_("a whole number, or nothing for no limit"), field=name)
            entered[name] = int(text)
    if values["budget"]:
        entered["budget_nano"] = nano_entered(values["budget"], field="budget_nano")
    return entered

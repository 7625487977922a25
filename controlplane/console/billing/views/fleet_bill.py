"""Staff: the cost of the fleet's machines, its division among tenants, and machine prices."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.billing.reports.fleet_bill import BY, Attribution, fleet_attribution
from controlplane.billing.reports.instance_prices import instance_price_list, instance_price_set
from controlplane.billing.reports.models import Plan
from controlplane.console.amounts import nano_entered
from controlplane.console.day_range import last_days, range_asked
from controlplane.console.pages import field_errors, staff_page
from controlplane.errors import ControlPlaneError, InvalidInputError

REGION: Final = "us-east-1"
_DAYS: Final = 30


@require_GET
@staff_page
def attribution(request: HttpRequest) -> HttpResponse:
    """Show the bill of a range of days, divided among the tenants to the nano-unit."""
    values = {"by": request.GET.get("by") or BY[0], "region": request.GET.get("region", "").strip() or REGION}
    error, found = "", None
    start, end = last_days(_DAYS)
    try:
        start, end = range_asked(request)
        found = fleet_attribution(start=start, end=end, **values)
    except InvalidInputError as wrong:
        error = str(wrong)
    context = {
        "start": start,
        "end": end,
        "error": error,
        "values": values,
        "measures": BY,
        "found": found,
        "parts": _parts(found) if found else (),
        "currency": (found.bill.currency if found else "") or "USD",
    }
    return render(request, "staff/fleet_bill.html", context, status=422 if error else 200)


@require_http_methods(["GET", "POST"])
@staff_page
def prices(request: HttpRequest) -> HttpResponse:
    """List the price of an hour of each machine, with the form that adds a price."""
    names = ("instance_type", "region", "plan", "effective_from", "hour", "currency", "source")
    values = {name: request.POST.get(name, "").strip() for name in names}
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            price = instance_price_set(**_price(values))
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="effective_from")
        else:
            text = _("Price of %(machine)s in %(region)s added, effective from %(day)s.")
            parts = {"machine": price.instance_type, "region": price.region, "day": price.effective_from}
            messages.success(request, text % parts)
            return redirect("console:staff-instance-prices")
    found = instance_price_list().order_by("instance_type", "region", "plan", "effective_from")
    context = {"prices": found, "values": values, "errors": errors, "region": REGION, "plans": Plan.choices}
    return render(request, "staff/instance_prices.html", context, status=422 if errors else 200)


def _parts(found: Attribution) -> list[tuple[str, int, str | None]]:
    """Return (tenant, nano-units, percent of the bill), the largest first; "" is the unattributed part."""
    total = found.bill.total
    parts = sorted(found.parts.items(), key=lambda part: (-part[1], part[0]))
    return [
        (tenant, nano, f"{Decimal(nano) / Decimal(total) * 100:.2f}" if total else None)
        for tenant, nano in parts
    ]


def _price(values: dict[str, str]) -> dict[str, Any]:
    """Parse the form to the service's arguments; an hour's price has at most nine decimals.

    Raises InvalidInputError.
    """
    try:
        day = dt.date.fromisoformat(values["effective_from"])
    except ValueError:
        raise InvalidInputError(_("give the day as YYYY-MM-DD"), field="effective_from") from None
    return {
        "instance_type": values["instance_type"],
        "region": values["region"],
        "plan": values["plan"] or Plan.ON_DEMAND,
        "effective_from": day,
        "hour_nano": nano_entered(values["hour"], field="hour_nano"),
        "currency": values["currency"] or "USD",
        "source": values["source"],
    }

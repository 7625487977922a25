"""Staff: the cost of the fleet's machines, its division among tenants, and machine prices."""

from __future__ import annotations

from decimal import Decimal

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from controlplane.billing.reports.api import REGION, AwsPricesInput, InstancePriceSerializer
from controlplane.billing.reports.aws_prices import Payment, instance_prices_read
from controlplane.billing.reports.fleet_bill import BY, Attribution, fleet_attribution
from controlplane.billing.reports.instance_prices import instance_price_list, instance_price_set
from controlplane.billing.reports.models import Plan
from controlplane.console.amounts import nano_entered
from controlplane.console.day_range import DAYS_30, presets_shown, range_asked
from controlplane.console.form_errors import FormErrors, parsed, posted
from controlplane.console.pages import staff_page
from controlplane.deployments.models import Target
from controlplane.deployments.selectors import target_get, target_list


@staff_page("GET")
def attribution(request: HttpRequest) -> HttpResponse:
    """Show the bill of a range of days, divided among the tenants to the nano-unit."""
    values = {"by": request.GET.get("by") or BY[0], "region": request.GET.get("region", "").strip() or REGION}
    found, (start, end) = None, DAYS_30.dates
    with FormErrors(request) as errors:
        start, end = range_asked(request)
        found = fleet_attribution(start=start, end=end, **values)
    context = {
        "start": start,
        "end": end,
        "presets": presets_shown(request),
        "values": values,
        "measures": BY,
        "found": found,
        "parts": _parts(found) if found else (),
        "currency": (found.bill.currency if found else "") or "USD",
    }
    return errors.render("staff/fleet_bill.html", context)


@staff_page("GET", "POST")
def prices(request: HttpRequest) -> HttpResponse:
    """List the price of an hour of each machine, with the form that adds a price."""
    names = ("instance_type", "region", "plan", "effective_from", "hour", "currency", "source")
    values = {name: request.POST.get(name, "").strip() for name in names}
    errors = FormErrors(request, conflict_field="effective_from")
    if request.method == "POST":
        with errors:
            hour = {"hour_nano": nano_entered(values["hour"], field="hour_nano")}
            sent = {**{name: values[name] for name in names if name != "hour"}, **hour}
            price = instance_price_set(**{"currency": "USD", **parsed(InstancePriceSerializer, sent)})
            text = _("Price of %(machine)s in %(region)s added, effective from %(day)s.")
            parts = {"machine": price.instance_type, "region": price.region, "day": price.effective_from}
            messages.success(request, text % parts)
            return redirect("console:staff-instance-prices")
    return errors.render("staff/instance_prices.html", _price_context() | {"values": values})


@staff_page("POST")
def prices_from_aws(request: HttpRequest) -> HttpResponse:
    """Add today's prices as AWS states them."""
    with FormErrors(request) as errors:
        sent = parsed(AwsPricesInput, posted(request, AwsPricesInput))
        read = instance_prices_read(**sent | {"target": target_get(name=sent["target"])})
        count = len(read.added)
        text = ngettext("%(n)s price added.", "%(n)s prices added.", count) % {"n": count}
        messages.success(request, text if count or read.kept else _("All prices are up to date."))
        if read.kept:
            text = ngettext(
                "%(n)s price of today differs and was kept.",
                "%(n)s prices of today differ and were kept.",
                read.kept,
            )
            messages.warning(request, text % {"n": read.kept})
        return redirect("console:staff-instance-prices")
    asked = {"aws_values": posted(request, AwsPricesInput), "aws_errors": errors}
    return render(request, "staff/instance_prices.html", _price_context() | asked, status=422)


def _price_context() -> dict[str, object]:
    return {
        "prices": instance_price_list().order_by("instance_type", "region", "plan", "effective_from"),
        "plans": Plan.choices,
        "targets": target_list(kind=Target.Kind.SAGEMAKER),
        "payments": Payment.choices,
    }


def _parts(found: Attribution) -> list[tuple[str, int, str | None]]:
    """Return (tenant, nano-units, percent of the bill), the largest first; "" is the unattributed part."""
    total = found.bill.total
    parts = sorted(found.parts.items(), key=lambda part: (-part[1], part[0]))
    return [
        (tenant, nano, f"{Decimal(nano) / Decimal(total) * 100:.2f}" if total else None)
        for tenant, nano in parts
    ]

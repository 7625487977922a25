"""The operator's page of usage sources, which may report usage for projects other than their own."""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.console.entered import entered
from controlplane.console.form_errors import FormErrors
from controlplane.console.pages import staff_page
from controlplane.errors import InvalidInputError
from controlplane.metering.sources import source_create, source_delete, source_get, source_list

_ENTERED: Final = {"tenant": 63, "service_account": 63, "tenants": 65_000}


@staff_page("GET", "POST")
def index(request: HttpRequest) -> HttpResponse:
    """List every source, with the form that creates one."""
    values = {name: request.POST.get(name, "").strip() for name in _ENTERED}
    errors = FormErrors(request, conflict_field="service_account")
    if request.method == "POST":
        with errors:
            _create(request)
            messages.success(request, _("Its keys with scope usage:write can now report for these tenants."))
            return redirect("console:staff-usage-sources")
    context = {"sources": source_list(), "values": values, "all": request.POST.get("all")}
    return errors.render("staff/usage_sources.html", context)


def _create(request: HttpRequest) -> None:
    given = {name: entered(request, name, most=most) for name, most in _ENTERED.items()}
    named = given["tenants"].replace(",", " ").split()
    everyone = "all" in request.POST
    if everyone == bool(named):
        raise InvalidInputError(_("name the tenants, or choose all of them"), field="tenants")
    source_create(
        tenant=given["tenant"], service_account=given["service_account"], tenants=None if everyone else named
    )


@staff_page("POST")
def delete(request: HttpRequest, source: int) -> HttpResponse:
    """Delete a source, whose keys then report only for their own projects."""
    source_delete(source=source_get(source_id=source))
    messages.success(request, _("Its keys now report only for their own projects."))
    return redirect("console:staff-usage-sources")

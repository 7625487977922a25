"""The operator's page of usage sources, which may report usage for projects other than their own."""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.console.form_errors import FormErrors, parsed
from controlplane.console.pages import staff_page
from controlplane.errors import InvalidInputError
from controlplane.metering.api import UsageSourceSerializer
from controlplane.metering.sources import source_create, source_delete, source_get, source_list

_FIELDS: Final = ("tenant", "service_account", "tenants")


@staff_page("GET", "POST")
def index(request: HttpRequest) -> HttpResponse:
    """List every source, with the form that creates one."""
    values = {name: request.POST.get(name, "").strip() for name in _FIELDS}
    errors = FormErrors(request, conflict_field="service_account")
    if request.method == "POST":
        with errors:
            named, everyone = values["tenants"].replace(",", " ").split(), "all" in request.POST
            if everyone == bool(named):
                raise InvalidInputError(_("name the tenants, or choose all of them"), field="tenants")
            sent = parsed(UsageSourceSerializer, {**values, "tenants": None if everyone else named})
            account = sent["service_account"]
            source_create(
                tenant=account["tenant_id"], service_account=account["name"], tenants=sent["tenants"]
            )
            messages.success(request, _("Its keys with scope usage:write can now report for these tenants."))
            return redirect("console:staff-usage-sources")
    context = {"sources": source_list(), "values": values, "all": request.POST.get("all")}
    return errors.render("staff/usage_sources.html", context)


@staff_page("POST")
def delete(request: HttpRequest, source: int) -> HttpResponse:
    """Delete a source, whose keys then report only for their own projects."""
    source_delete(source=source_get(source_id=source))
    messages.success(request, _("Its keys now report only for their own projects."))
    return redirect("console:staff-usage-sources")

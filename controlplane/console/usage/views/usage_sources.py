"""The operator's page of usage sources, which may report usage for projects other than their own."""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.console.entered import entered
from controlplane.console.pages import field_errors, staff_page
from controlplane.errors import ControlPlaneError, InvalidInputError, NotFoundError
from controlplane.metering.sources import source_create, source_delete, source_get, source_list

_ENTERED: Final = {"tenant": 63, "service_account": 63, "tenants": 65_000}


@require_http_methods(["GET", "POST"])
@staff_page
def index(request: HttpRequest) -> HttpResponse:
    """List every source, with the form that creates one."""
    values, errors = {name: request.POST.get(name, "").strip() for name in _ENTERED}, dict[str, str]()
    if request.method == "POST":
        try:
            _create(request)
        except NotFoundError as error:
            errors = {"service_account": str(error)}
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="service_account")
        else:
            messages.success(request, _("Its keys with scope usage:write can now report for these tenants."))
            return redirect("console:staff-usage-sources")
    context = {"sources": source_list(), "values": values, "errors": errors, "all": request.POST.get("all")}
    return render(request, "staff/usage_sources.html", context, status=422 if errors else 200)


def _create(request: HttpRequest) -> None:
    given = {name: entered(request, name, most=most) for name, most in _ENTERED.items()}
    named = given["tenants"].replace(",", " ").split()
    everyone = "all" in request.POST
    if everyone == bool(named):
        raise InvalidInputError(_("name the tenants, or choose all of them"), field="tenants")
    source_create(
        tenant=given["tenant"], service_account=given["service_account"], tenants=None if everyone else named
    )


@require_POST
@staff_page
def delete(request: HttpRequest, source: int) -> HttpResponse:
    """Delete a source, whose keys then report only for their own projects."""
    source_delete(source=source_get(source_id=source))
    messages.success(request, _("Its keys now report only for their own projects."))
    return redirect("console:staff-usage-sources")

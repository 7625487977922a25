"""Staff: all tenants' audit logs and the platform's own, with filters and exports."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.console.audit_page import audit_context, audit_filtered, audit_form
from controlplane.console.pages import staff_page
from controlplane.errors import InvalidInputError
from controlplane.platform.audit.export import CONTENT_TYPES, export_lines
from controlplane.platform.audit.filters import FleetAuditFilter
from controlplane.platform.audit.selectors import audit_chunks, audit_list
from controlplane.platform.http.streaming import streamed


@require_GET
@staff_page
def index(request: HttpRequest) -> HttpResponse:
    """List all audit records, newest first; `?before=<id>` continues the list."""
    context = audit_context(request, audit_list(tenant=None), filters=FleetAuditFilter, key="id")
    return render(request, "staff/audit.html", context, status=422 if context["error"] else 200)


@require_GET
@staff_page
def export(request: HttpRequest) -> HttpResponseBase:
    """Export the filtered records as CSV or JSON lines."""
    try:
        form = audit_form(request)
        records = audit_filtered(request, audit_list(tenant=None), filters=FleetAuditFilter)
    except InvalidInputError as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    lines = export_lines(audit_chunks(records=records), form)
    return streamed(request, lines, content_type=CONTENT_TYPES[form], file_name=f"audit-fleet.{form}")

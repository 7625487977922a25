"""The tenant's audit log: a table with filters, and as a file."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.console.audit_page import audit_context, audit_filtered, audit_form
from controlplane.console.pages import tenant_page
from controlplane.errors import InvalidInputError
from controlplane.platform.audit.export import CONTENT_TYPES, export_lines
from controlplane.platform.audit.selectors import audit_chunks, audit_list, chain_get
from controlplane.platform.http.streaming import streamed
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission


@require_GET
@tenant_page(Permission.AUDIT_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List the audit records, newest first; `?before=<number>` continues the list."""
    context = audit_context(request, audit_list(tenant=tenant.pk))
    context["chain"] = chain_get(tenant=tenant.pk)
    return render(request, "console/audit.html", context, status=422 if context["error"] else 200)


@require_GET
@tenant_page(Permission.AUDIT_READ)
def export(request: HttpRequest, tenant: Tenant) -> HttpResponseBase:
    """The log, as filtered, as CSV or JSON lines."""
    try:
        form = audit_form(request)
        records = audit_filtered(request, audit_list(tenant=tenant.pk))
    except InvalidInputError as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    lines = export_lines(audit_chunks(records=records), form)
    name = f"audit-{tenant.pk}.{form}"
    return streamed(request, lines, content_type=CONTENT_TYPES[form], file_name=name)

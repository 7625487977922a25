"""Audit logs with filters and exports: a tenant's; for staff all tenants' and the platform's own."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from controlplane.console.amounts import whole
from controlplane.console.downloads import download
from controlplane.console.form_errors import FormErrors
from controlplane.console.pages import staff_page, tenant_page
from controlplane.errors import InvalidInputError
from controlplane.platform.audit.export import CONTENT_TYPES, export_lines
from controlplane.platform.audit.filters import AuditFilter, FleetAuditFilter
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.audit.selectors import audit_before, audit_chunks, audit_list, chain_get
from controlplane.platform.http.streaming import streamed
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

PAGE: Final = 50
_TEXTS: Final = ("action", "actor", "target", "tenant")
Records = QuerySet[AuditRecord]


@tenant_page(read=Permission.AUDIT_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List the tenant's audit records, newest first; `?before=<number>` continues the list."""
    return _page(request, "console/audit.html", tenant=tenant.pk, key="number")


@tenant_page(read=Permission.AUDIT_READ)
@download
def export(request: HttpRequest, tenant: Tenant) -> HttpResponseBase:
    """Export the tenant's filtered records as CSV or JSON lines."""
    return _file(request, tenant=tenant.pk, name=f"audit-{tenant.pk}")


@staff_page("GET")
def fleet(request: HttpRequest) -> HttpResponse:
    """List all audit records, newest first; `?before=<id>` continues the list."""
    return _page(request, "staff/audit.html", tenant=None, key="id")


@staff_page("GET")
@download
def fleet_export(request: HttpRequest) -> HttpResponseBase:
    """Export all filtered records as CSV or JSON lines."""
    return _file(request, tenant=None, name="audit-fleet")


def _page(request: HttpRequest, template: str, *, tenant: str | None, key: str) -> HttpResponse:
    """Show a page of a tenant's log, or of all logs.

    Args:
        key: the records' order: `number` within a tenant's log, `id` across several.
    """
    errors, records = FormErrors(request), audit_list(tenant=tenant).none()
    with errors:
        records = _filtered(request, tenant)
    if (before := whole(request.GET.get("before", ""))) is not None:
        records = audit_before(records=records, key=key, value=before)
    rows = list(records[: PAGE + 1])
    context: dict[str, Any] = {
        "rows": rows[:PAGE],
        "older": getattr(rows[PAGE - 1], key) if len(rows) > PAGE else None,
        "values": request.GET,
        "narrows": any(request.GET.values()),
        "chain": chain_get(tenant=tenant) if tenant else None,
    }
    return errors.render(template, context)


def _file(request: HttpRequest, *, tenant: str | None, name: str) -> HttpResponseBase:
    asked = request.GET.get("form", "csv")
    form = next((known for known in CONTENT_TYPES if known == asked), None)
    if form is None:
        raise InvalidInputError(_("form must be csv or jsonl"), field="form")
    lines = export_lines(audit_chunks(records=_filtered(request, tenant)), form)
    return streamed(request, lines, content_type=CONTENT_TYPES[form], file_name=f"{name}.{form}")


def _filtered(request: HttpRequest, tenant: str | None) -> Records:
    """Return the records that match the request's filters. Raises InvalidInputError."""
    values = {name: request.GET.get(name, "").strip() for name in _TEXTS}
    since, until = (_day(request.GET.get(name, "")) for name in ("since", "until"))
    if since is not None:
        values["since"] = since.isoformat()
    if until is not None:
        # The last day is included.
        values["until"] = (until + dt.timedelta(days=1)).isoformat()
    kind = AuditFilter if tenant else FleetAuditFilter
    filtered = kind(values, queryset=audit_list(tenant=tenant))
    if not filtered.is_valid():
        raise InvalidInputError(" ".join(text for texts in filtered.errors.values() for text in texts))
    found: Records = filtered.qs
    return found


def _day(text: str) -> dt.datetime | None:
    if not text:
        return None
    try:
        return dt.datetime.combine(dt.date.fromisoformat(text), dt.time(), dt.UTC)
    except ValueError as error:
        raise InvalidInputError(_("give both days as YYYY-MM-DD"), field="since") from error

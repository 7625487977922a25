"""The tenant's audit log: a table with filters, and as a file."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from controlplane.audit.export import CONTENT_TYPES, export_lines
from controlplane.audit.filters import AuditFilter
from controlplane.audit.models import AuditRecord
from controlplane.audit.selectors import audit_chunks, audit_list, chain_get
from controlplane.console.pages import tenant_page
from controlplane.errors import InvalidInputError
from controlplane.http.streaming import streamed
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

PAGE: Final = 50


@require_GET
@tenant_page(Permission.AUDIT_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """What was done, newest first; `?before=<number>` goes on from there."""
    records, error = audit_list(tenant=tenant.pk), ""
    try:
        records = _filtered(request, records)
    except InvalidInputError as wrong:
        error = str(wrong)
    before = request.GET.get("before", "")
    if before.isascii() and before.isdigit() and len(before) < 19:
        records = records.filter(number__lt=int(before))
    rows = list(records[: PAGE + 1])
    query = request.GET.copy()
    query.pop("before", None)
    context = {
        "rows": rows[:PAGE],
        "older": rows[PAGE - 1].number if len(rows) > PAGE else None,
        "query": query.urlencode(),
        "values": query,
        "error": error,
        "chain": chain_get(tenant=tenant.pk),
    }
    return render(request, "console/audit.html", context, status=422 if error else 200)


@require_GET
@tenant_page(Permission.AUDIT_READ)
def export(request: HttpRequest, tenant: Tenant) -> HttpResponseBase:
    """The log, as filtered, as CSV or JSON lines."""
    form = request.GET.get("form", "csv")
    try:
        if form not in CONTENT_TYPES:
            raise InvalidInputError(_("form must be csv or jsonl"), field="form")
        records = _filtered(request, audit_list(tenant=tenant.pk))
    except InvalidInputError as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    lines = export_lines(audit_chunks(records=records), form)
    name = f"audit-{tenant.pk}.{form}"
    return streamed(request, lines, content_type=CONTENT_TYPES[form], file_name=name)


def _filtered(request: HttpRequest, records: QuerySet[AuditRecord]) -> QuerySet[AuditRecord]:
    values = {name: request.GET.get(name, "").strip() for name in ("action", "actor", "target")}
    since, until = (_day(request.GET.get(name, "")) for name in ("since", "until"))
    if since is not None:
        values["since"] = since.isoformat()
    if until is not None:
        # The last day is a whole one.
        values["until"] = (until + dt.timedelta(days=1)).isoformat()
    filtered = AuditFilter(values, queryset=records)
    if not filtered.is_valid():
        raise InvalidInputError(" ".join(text for texts in filtered.errors.values() for text in texts))
    found: QuerySet[AuditRecord] = filtered.qs
    return found


def _day(text: str) -> dt.datetime | None:
    if not text:
        return None
    try:
        return dt.datetime.combine(dt.date.fromisoformat(text), dt.time(), dt.UTC)
    except ValueError as error:
        raise InvalidInputError(_("give both days as YYYY-MM-DD"), field="since") from error

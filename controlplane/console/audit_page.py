"""Shared parts of audit log pages: filters from the form, and rows from one record on."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _

from controlplane.errors import InvalidInputError
from controlplane.platform.audit.export import CONTENT_TYPES, Form
from controlplane.platform.audit.filters import AuditFilter
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.audit.selectors import audit_before

PAGE: Final = 50
_TEXTS: Final = ("action", "actor", "target", "tenant")
Records = QuerySet[AuditRecord]


def audit_context(
    request: HttpRequest, records: Records, *, filters: type[AuditFilter] = AuditFilter, key: str = "number"
) -> dict[str, Any]:
    """Return the context of a page of rows, newest first; `?before=` continues the list.

    Args:
        key: the records' order: `number` within a tenant's log, `id` across several.
    """
    error = ""
    try:
        records = audit_filtered(request, records, filters=filters)
    except InvalidInputError as wrong:
        records, error = records.none(), str(wrong)
    before = request.GET.get("before", "")
    if before.isascii() and before.isdigit() and len(before) < 19:
        records = audit_before(records=records, key=key, value=int(before))
    rows = list(records[: PAGE + 1])
    query = request.GET.copy()
    query.pop("before", None)
    return {
        "rows": rows[:PAGE],
        "older": getattr(rows[PAGE - 1], key) if len(rows) > PAGE else None,
        "query": query.urlencode(),
        "values": query,
        "error": error,
        "narrows": bool(before) or any(query.values()),
    }


def audit_form(request: HttpRequest) -> Form:
    """Return the format of an export. Raises InvalidInputError."""
    asked = request.GET.get("form", "csv")
    form = next((name for name in CONTENT_TYPES if name == asked), None)
    if form is None:
        raise InvalidInputError(_("form must be csv or jsonl"), field="form")
    return form


def audit_filtered(
    request: HttpRequest, records: Records, *, filters: type[AuditFilter] = AuditFilter
) -> Records:
    """Return the records that match the request's filters. Raises InvalidInputError."""
    values = {name: request.GET.get(name, "").strip() for name in _TEXTS}
    since, until = (_day(request.GET.get(name, "")) for name in ("since", "until"))
    if since is not None:
        values["since"] = since.isoformat()
    if until is not None:
        # The last day is included.
        values["until"] = (until + dt.timedelta(days=1)).isoformat()
    filtered = filters(values, queryset=records)
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

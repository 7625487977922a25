"""The tenant's list of adapters, filtered and sorted, and the adapters that can be restored."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.quotas import quota_get, quota_use
from controlplane.adapters.selectors import adapter_list
from controlplane.catalog.selectors import base_model_list
from controlplane.console.adapters.list_form import SORTS, STATUSES, AdapterListForm
from controlplane.console.pages import tenant_page
from controlplane.console.paging import page_of
from controlplane.deployments.placement.selectors import pinned_copies
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission

DELETED_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the list. `kept`: number of copies that keep the default version resident."""

    adapter: Adapter
    newest: AdapterVersion | None
    kept: int


@tenant_page(read=Permission.ADAPTERS_READ)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show a page of the list; while a version on it is validated, its table polls."""
    form = AdapterListForm.from_request(request)
    page = page_of(request, form.rows(adapter_list(tenant=tenant)))
    rows = _rows(page.rows)
    busy = any(row.newest is not None and not row.newest.is_settled for row in rows)
    is_poll = request.headers.get("HX-Target") == "adapter-rows"
    template = "console/adapters/rows.html" if is_poll else "console/adapters/index.html"
    context = {"rows": rows, "busy": busy, "page": page, "form": form}
    if not is_poll:
        context |= {"deleted": deleted_adapters(tenant), "bases": base_model_list()}
        context |= {"sorts": [(key, text) for key, (text, _order) in SORTS.items()], "statuses": STATUSES}
        context["quota"] = quota = quota_get(tenant=tenant)
        # Counting reads all the tenant's versions, so tenants without a quota skip it.
        if any(getattr(quota, name) is not None for name in quota.FIELDS):
            context["use"] = quota_use(tenant=tenant)
    return render(request, template, context)


def _rows(adapters: list[Adapter]) -> list[Row]:
    kept = _kept_on(adapters)
    return [
        Row(item, next(iter(item.live_versions), None), kept.get(means.engine_name, 0) if means else 0)
        for item in adapters
        for means in (item.default_version,)
    ]


def _kept_on(adapters: list[Adapter]) -> dict[str, int]:
    """Count by engine name the copies that keep a version in memory, or whose own deployment serves it."""
    names = [
        version.engine_name
        for adapter in adapters
        for version in adapter.live_versions
        if version.is_callable and version.sha256
    ]
    return pinned_copies(engine_names=names, base_models={adapter.base_model_id for adapter in adapters})


def deleted_adapters(tenant: Tenant) -> list[tuple[Adapter, dt.datetime | None]]:
    """Return the first DELETED_SHOWN restorable adapters by name, with the end of their grace period."""
    deleted = adapter_list(tenant=tenant, deleted=True)[:DELETED_SHOWN]
    return [(item, until(item.deleted_at)) for item in deleted]


def until(deleted_at: dt.datetime | None) -> dt.datetime | None:
    """Return the end of the grace period of an object deleted at `deleted_at`."""
    return deleted_at and deleted_at + dt.timedelta(days=settings.GRAFTWORK.adapter_grace_days)

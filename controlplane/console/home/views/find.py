"""Search results of the command palette: adapters, models, deployments and tenants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlencode

from django.http import HttpRequest, JsonResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from controlplane.adapters.selectors import adapter_names
from controlplane.catalog.selectors import base_model_names
from controlplane.console.pages import page_access, page_user, staff_page, tenant_page
from controlplane.deployments.selectors import deployment_names
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_list, tenants_of

MOST: Final = 6
"""Most results of one kind."""
_LONGEST: Final = 100
Result = dict[str, str]


@tenant_page(read=Permission.TENANT_READ)
def tenant_find(request: HttpRequest, tenant: Tenant) -> JsonResponse:
    """Find the tenant's adapters, base models, and the user's other tenants, by `?q=`."""
    part, access = _part(request), page_access(request)
    found: list[Result] = []
    if access.may(Permission.ADAPTERS_READ):
        names = (name for _tenant, name in adapter_names(tenant=tenant, part=part)[:MOST])
        found += [_result(_("Adapter"), name, "adapter", tenant.pk, name) for name in names]
    if access.may(Permission.INFERENCE_CALL):
        found += [
            _result(_("Base model"), name, "playground", tenant.pk, model=name)
            for name in base_model_names(part=part)[:MOST]
        ]
    others = [row for row in tenants_of(user=page_user(request)) if row != tenant]
    return _answer([*found, *_tenants(others, part, "home")])


@staff_page("GET")
def staff_find(request: HttpRequest) -> JsonResponse:
    """Find all tenants' adapters, base models, deployments and tenants, by `?q=`."""
    part = _part(request)
    deployments, models = deployment_names(part=part)[:MOST], base_model_names(part=part)[:MOST]
    adapters = adapter_names(tenant=None, part=part)[:MOST]
    found = _tenants(tenant_list(search=part)[:MOST], part, "staff-tenant")
    found += [_result(_("Deployment"), name, "staff-deployment", name) for name in deployments]
    found += [_result(_("Base model"), name, "staff-base-model", name) for name in models]
    found += [
        _result(_("Adapter"), f"{tenant}/{name}", "staff-monitoring", tenant, search=name)
        for tenant, name in adapters
    ]
    return _answer(found)


def _part(request: HttpRequest) -> str:
    return request.GET.get("q", "").strip()[:_LONGEST]


def _tenants(tenants: Iterable[Tenant], part: str, page: str) -> list[Result]:
    named = (row for row in tenants if part.lower() in f"{row.pk} {row.name}".lower())
    return [_result(_("Tenant"), f"{row.name} ({row.pk})", page, row.pk) for row in named][:MOST]


def _result(kind: str, title: str, page: str, *arguments: str, **query: str) -> Result:
    url = reverse(f"console:{page}", args=arguments)
    return {"kind": kind, "title": title, "url": f"{url}?{urlencode(query)}" if query else url}


def _answer(found: list[Result]) -> JsonResponse:
    return JsonResponse({"found": found})

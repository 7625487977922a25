"""The playground: the browser streams from the gateway itself, with a key of a quarter of an hour."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.selectors import adapter_list
from controlplane.catalog.selectors import base_model_list
from controlplane.console.pages import tenant_page
from controlplane.tenants.models import ApiKey, Tenant, User
from controlplane.tenants.services import api_key_create

KEY_NAME: Final = "playground"
KEY_LIFETIME: Final = dt.timedelta(minutes=15)


@require_GET
@tenant_page
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """What may be called, each adapter with the base to lay beside it."""
    models = [
        {"base": adapter.base_model.name, "calls": _calls(adapter)}
        for adapter in adapter_list(tenant=tenant)
        if adapter.default_version
    ]
    context = {
        "models": models,
        "bases": base_model_list(),
        "chosen": request.GET.get("model", ""),
        "gateway_url": settings.GRAFTWORK.gateway_url,
    }
    return render(request, "console/playground.html", context)


def _calls(adapter: Adapter) -> list[str]:
    """Every name by which the adapter can be called."""
    name = adapter.name
    aliases = [f"{name}@{alias.name}" for alias in adapter.aliases.all()]
    versions = [
        f"{name}@v{version.number}"
        for version in adapter.versions.all()
        if version.status == AdapterVersion.Status.READY
    ]
    return [name, *aliases, *versions]


@never_cache
@require_POST
@tenant_page
def key(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """A short-lived key for this browser: `{"key", "expires_at"}`, the latter in Unix seconds."""
    assert isinstance(request.user, User)
    expires_at = timezone.now() + KEY_LIFETIME
    _, text = api_key_create(
        tenant=tenant,
        name=KEY_NAME,
        scopes=[ApiKey.Scope.INFERENCE],
        created_by=request.user,
        expires_at=expires_at,
    )
    return JsonResponse({"key": text, "expires_at": expires_at.timestamp()})

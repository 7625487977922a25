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
from controlplane.adapters.selectors import adapter_callable
from controlplane.catalog.selectors import base_model_list
from controlplane.console.pages import tenant_page
from controlplane.tenants.models import ApiKey, Tenant, User
from controlplane.tenants.roles import Permission
from controlplane.tenants.services import api_key_create

KEY_LIFETIME: Final = dt.timedelta(minutes=15)
SHOWN: Final = 100
"""Adapters to choose from; any other is tried from its own page."""


@require_GET
@tenant_page(Permission.INFERENCE_CALL)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """What may be called, each adapter with the base to lay beside it."""
    chosen = request.GET.get("model", "")
    ready = adapter_callable(tenant=tenant)
    shown = list(ready[: SHOWN + 1])
    named = ready.filter(name=chosen.partition("@")[0]).exclude(pk__in=[item.pk for item in shown[:SHOWN]])
    context = {
        "models": [
            {"base": adapter.base_model.name, "calls": _calls(adapter)}
            for adapter in [*named, *shown[:SHOWN]]
        ],
        "more": len(shown) > SHOWN,
        "bases": base_model_list(),
        "chosen": chosen,
        "gateway_url": settings.GRAFTWORK.gateway_url,
    }
    return render(request, "console/playground.html", context)


def _calls(adapter: Adapter) -> list[str]:
    """Every name by which the adapter can be called."""
    name = adapter.name
    aliases = [f"{name}@{alias.name}" for alias in adapter.live_aliases]
    versions = [
        f"{name}@v{version.number}"
        for version in adapter.live_versions
        if version.status == AdapterVersion.Status.READY
    ]
    return [name, *aliases, *versions]


@never_cache
@require_POST
@tenant_page(Permission.INFERENCE_CALL)
def key(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """A short-lived key for this browser: `{"key", "expires_at"}`, the latter in Unix seconds."""
    assert isinstance(request.user, User)
    expires_at = timezone.now() + KEY_LIFETIME
    _, text = api_key_create(
        tenant=tenant,
        name=ApiKey.PLAYGROUND,
        scopes=[ApiKey.Scope.INFERENCE],
        created_by=request.user,
        expires_at=expires_at,
    )
    return JsonResponse({"key": text, "expires_at": expires_at.timestamp()})

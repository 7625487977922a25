"""The playground: the browser streams from the gateway itself, with a key valid for 15 minutes."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache

from contracts.image_bounds import MAX_IMAGES, MAX_PIXELS, MAX_SIDE, MEDIA_TYPES
from contracts.openai.parameters import EFFORTS
from controlplane.adapters.models import Adapter
from controlplane.adapters.selectors import adapter_callable, adapter_callable_find, adapter_named
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import call_units
from controlplane.catalog.selectors import base_model_list, image_tokens
from controlplane.console.adapters.playground_texts import texts
from controlplane.console.pages import page_access, page_user, tenant_page
from controlplane.errors import NotFoundError
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.services import api_key_create

KEY_LIFETIME: Final = dt.timedelta(minutes=15)
MOST_COLUMNS: Final = 4
"""The base model and three adapters."""
OFFERED: Final = 50
"""Most adapter names in the initial list; typing finds the others."""
_NAME: Final = 200


@tenant_page(read=Permission.INFERENCE_CALL)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Show the page with the models of `?model=` side by side, else the first adapter and its base model."""
    bases = [base.name for base in base_model_list()]
    asked = list(dict.fromkeys(name[:_NAME] for name in request.GET.getlist("model") if name))
    context = {
        "bases": bases,
        "efforts": EFFORTS,
        "image_types": MEDIA_TYPES,
        "gateway_url": settings.GRAFTWORK.gateway_url,
        "setup": {
            "gateway": settings.GRAFTWORK.gateway_url,
            "columns": _columns(tenant, asked[:MOST_COLUMNS], bases),
            "bases": bases,
            "most": MOST_COLUMNS,
            "images": _image_bounds(),
            "texts": texts(gateway=settings.GRAFTWORK.gateway_url),
            "urls": _urls(request, tenant),
        },
    }
    return render(request, "console/playground.html", context)


def _image_bounds() -> dict[str, object]:
    """Return what the gateway accepts of a request's images; pixels are those of all images together."""
    return {"types": MEDIA_TYPES, "most": MAX_IMAGES, "side": MAX_SIDE, "pixels": MAX_PIXELS}


def _columns(tenant: Tenant, asked: list[str], bases: list[str]) -> list[str]:
    """Return the initial columns; a single adapter is shown with its base model."""
    if len(asked) > 1 or (asked and asked[0] in bases):
        return asked
    if asked:
        found = adapter_callable_find(tenant=tenant, name=asked[0].partition("@")[0])
    else:
        found = adapter_callable(tenant=tenant).first()
    if found is None:
        return asked or bases[:1]
    return [asked[0] if asked else found.name, found.base_model.name]


def _urls(request: HttpRequest, tenant: Tenant) -> dict[str, str]:
    """Return the URLs that the script requests or links to, without pages that the member may not see."""
    may = page_access(request).may
    names = {"key": "playground-key", "models": "playground-models", "prices": "playground-prices"}
    names |= {"adapters": "adapters"} if may(Permission.ADAPTERS_READ) else {}
    names |= {"limits": "usage"} if may(Permission.USAGE_READ) else {}
    return {key: reverse(f"console:{name}", args=(tenant.pk,)) for key, name in names.items()}


@tenant_page(read=Permission.INFERENCE_CALL)
def models(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Return `{"models": [...]}`: callable names that contain `search`, base models first."""
    search = request.GET.get("search", "").strip().lower()[:_NAME]
    part = search.partition("@")[0]
    adapters = adapter_callable(tenant=tenant)
    shown = (adapter_named(adapters, part) if part else adapters)[:OFFERED]
    names = [base.name for base in base_model_list()]
    names += [call for adapter in shown for call in _calls(adapter)]
    return JsonResponse({"models": [name for name in names if search in name.lower()][: 4 * OFFERED]})


def _calls(adapter: Adapter) -> list[str]:
    """Return every name by which the adapter can be called."""
    name = adapter.name
    aliases = [f"{name}@{alias.name}" for alias in adapter.live_aliases]
    versions = [f"{name}@v{version.number}" for version in adapter.live_versions if version.is_callable]
    return [name, *aliases, *versions]


@never_cache
@tenant_page(read=Permission.INFERENCE_CALL)
def prices(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Return today's prices of `model`: `{"currency", "units", "reads_images"}`, in nano-units.

    `units` has an object for each price of a token or request that a backend may cause, null for no price;
    without a model it is empty. `reads_images` is null where it is not known.

    Raises:
        NotFoundError: the tenant has no such model.
    """
    model = request.GET.get("model", "")[:_NAME]
    name, at, _tag = model.partition("@")
    bases = {base.name: base for base in base_model_list()}
    adapter = adapter_callable_find(tenant=tenant, name=name)
    found, units = PriceList.load(), list[dict[str, int] | None]()
    if not model:
        return JsonResponse({"currency": found.currency(), "units": units, "reads_images": None})
    if adapter is None and (at or name not in bases):
        raise NotFoundError(f"there is no model {model!r}")
    base = bases[adapter.base_model.name if adapter else name]
    for backend in sorted({copy.kind for copy in base.copies.all()}) or [""]:
        unit = _units(found, tenant, base.name, adapter.name if adapter else "", backend)
        if unit not in units:
            units.append(unit)
    rule = image_tokens(base)
    reads = None if rule is None else rule.reads_images
    return JsonResponse({"currency": found.currency(), "units": units, "reads_images": reads})


def _units(found: PriceList, tenant: Tenant, base: str, adapter: str, backend: str) -> dict[str, int] | None:
    today = timezone.now().astimezone(dt.UTC).date()
    price = found.call(tenant=tenant.pk, day=today, base_model=base, adapter=adapter, backend=backend)
    if price is None:
        return None
    by_input, by_cached, by_output, by_thought, by_request = call_units(price)
    return {
        "input": by_input,
        "cached": by_cached,
        "output": by_output,
        "reasoning": by_thought,
        "request": by_request,
    }


@never_cache
@tenant_page(write=Permission.INFERENCE_CALL)
def key(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Create a short-lived key for this browser: `{"key", "expires_at"}`, the latter in Unix seconds."""
    expires_at = timezone.now() + KEY_LIFETIME
    _, text = api_key_create(
        tenant=tenant,
        name=ApiKey.PLAYGROUND,
        scopes=[ApiKey.Scope.INFERENCE],
        created_by=page_user(request),
        expires_at=expires_at,
    )
    return JsonResponse({"key": text, "expires_at": expires_at.timestamp()})

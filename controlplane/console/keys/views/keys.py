"""API keys: created and shown once, rotated, revoked."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from contracts.keys import ENDPOINTS
from controlplane.console.form_errors import FormErrors, RefusalMessage, parsed
from controlplane.console.keys.views.key import words
from controlplane.console.pages import page_access, page_user, tenant_page
from controlplane.console.paging import page_of, searched
from controlplane.errors import InvalidInputError
from controlplane.tenants.access import may_change_key
from controlplane.tenants.api.keys import ApiKeyInput
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import (
    api_key_get,
    api_key_list_current,
    api_key_named,
    project_get,
    project_list,
    service_account_get,
    service_account_list,
)
from controlplane.tenants.services import api_key_create, api_key_revoke, api_key_rotate

LIFETIMES: Final = {
    "": gettext_lazy("Never expires"),
    "30": gettext_lazy("30 days"),
    "90": gettext_lazy("90 days"),
    "365": gettext_lazy("1 year"),
}
OVERLAPS: Final = {
    "0": gettext_lazy("Expires immediately"),
    "1": gettext_lazy("1 hour"),
    "24": gettext_lazy("1 day"),
    "168": gettext_lazy("7 days"),
}
"""Choices of hours for which the old secret stays valid."""


@never_cache
@tenant_page(read=Permission.KEYS_READ, write=Permission.KEYS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List keys and show the form; only the answer to the form shows the secret."""
    context, errors = dict[str, object](), FormErrors(request, conflict_field="name")
    if request.method == "POST":
        names = ("name", "lifetime", "owner", "allowed_models", "allowed_networks")
        texts = {name: request.POST.get(name, "") for name in names}
        lists = {name: request.POST.getlist(name) for name in ("scopes", "allowed_endpoints")}
        with errors:
            context["created"], context["secret"] = _create(request, tenant, texts, lists)
        if errors:
            context["values"] = {**texts, **lists}
    return _page(request, tenant, context, errors)


def _page(request: HttpRequest, tenant: Tenant, more: dict[str, object], errors: FormErrors) -> HttpResponse:
    now = timezone.now()
    keys, search = api_key_list_current(tenant=tenant), ""
    if request.method == "GET" and (search := searched(request)):
        keys = api_key_named(keys, search)
    page = page_of(request, keys)
    context = {
        "lifetimes": LIFETIMES,
        "overlaps": OVERLAPS,
        "endpoints": ENDPOINTS,
        "projects": project_list(tenant=tenant, active=True),
        "accounts": service_account_list(tenant=tenant, active=True),
        "values": {"scopes": ["inference"], "lifetime": "", "owner": ""},
        "keys": page.rows,
        "changeable": {key.pk for key in page.rows if may_change_key(page_access(request), key)},
        "page": page,
        "search": search,
        "now": now,
        **more,
    }
    is_htmx = request.headers.get("HX-Request") == "true"
    return errors.render("console/keys/body.html" if is_htmx else "console/keys/index.html", context)


def _create(
    request: HttpRequest, tenant: Tenant, texts: dict[str, str], lists: dict[str, list[str]]
) -> tuple[ApiKey, str]:
    if (lifetime := texts["lifetime"]) not in LIFETIMES:
        raise InvalidInputError(_("choose one of the lifetimes"), field="lifetime")
    sent = {
        "name": texts["name"],
        "scopes": lists["scopes"],
        "allowed_models": words(texts["allowed_models"]),
        "allowed_endpoints": lists["allowed_endpoints"] or None,
        "allowed_networks": words(texts["allowed_networks"]),
    }
    return api_key_create(
        tenant=tenant,
        by=page_access(request),
        created_by=page_user(request),
        **_owner(tenant, texts["owner"]),
        expires_at=timezone.now() + dt.timedelta(days=int(lifetime)) if lifetime else None,
        **parsed(ApiKeyInput, sent),
    )


def _owner(tenant: Tenant, text: str) -> dict[str, Any]:
    """Parse `project:<slug>` or `account:<name>`; empty means the default project."""
    kind, _separator, name = text.partition(":")
    if kind == "account":
        return {"service_account": service_account_get(tenant=tenant, name=name)}
    return {"project": project_get(tenant=tenant, slug=name) if name else None}


@never_cache
@tenant_page(write=Permission.KEYS_WRITE)
def rotate(request: HttpRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    """Create a new secret for a key; only this answer shows it."""
    hours = request.POST.get("overlap", "")
    api_key = api_key_get(tenant=tenant, public_id=public_id)
    with RefusalMessage(request):
        if hours not in OVERLAPS:
            raise InvalidInputError(_("choose one of the times"), field="overlap")
        until = timezone.now() + dt.timedelta(hours=int(hours)) if hours != "0" else None
        created, secret = api_key_rotate(api_key=api_key, old_secret_until=until, by=page_access(request))
        return _page(request, tenant, {"created": created, "secret": secret}, FormErrors(request))
    return redirect("console:keys", tenant=tenant.pk)


@tenant_page(write=Permission.KEYS_WRITE)
def revoke(request: HttpRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    """Revoke a key."""
    found = api_key_get(tenant=tenant, public_id=public_id)
    api_key = api_key_revoke(api_key=found, by=page_access(request))
    messages.success(
        request,
        _("Key “%(name)s” was revoked. The change takes effect within a second.") % {"name": api_key.name},
    )
    return redirect("console:keys", tenant=tenant.pk)

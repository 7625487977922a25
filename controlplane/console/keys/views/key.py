"""One key's pages: its restrictions and expiry, and its limits within its tenant's limits."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from contracts.keys import ENDPOINTS
from controlplane.billing.selectors import price_book_default
from controlplane.console.form_errors import FormErrors, parsed
from controlplane.console.keys.limits_form import LimitsErrors, limits_entered, limits_shown
from controlplane.console.pages import page_access, tenant_page
from controlplane.console.seen import unchanged
from controlplane.tenants.access import may_change_key
from controlplane.tenants.api.keys import ApiKeyChangesInput
from controlplane.tenants.limits.selectors import key_limits_get, tenant_limits_get
from controlplane.tenants.limits.services import key_limits_set
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_get
from controlplane.tenants.services import api_key_update

_LISTS: Final = ("allowed_models", "allowed_networks", "allowed_endpoints")
_MINUTE: Final = "%Y-%m-%dT%H:%M"


@tenant_page(read=Permission.KEYS_READ, write=Permission.KEYS_WRITE)
def detail(request: HttpRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    """Show the key; POST changes its expiry and restrictions, and an empty field lifts a restriction."""
    api_key = api_key_get(tenant=tenant, public_id=public_id)

    def current() -> dict[str, str]:
        return _form_values(api_key_get(tenant=tenant, public_id=public_id))

    values = current()
    errors = FormErrors(request, conflict_field="key", shown=values)
    if request.method == "POST":
        values = {name: request.POST.get(name, "").strip() for name in values}
        values["allowed_endpoints"] = ", ".join(request.POST.getlist("allowed_endpoints"))
        with errors, unchanged(request, row=api_key, shown=current):
            changes = parsed(ApiKeyChangesInput, _changes(current(), values))
            api_key_update(api_key=api_key, by=page_access(request), **changes)
            messages.success(request, _("Key updated. The change takes effect within a second."))
            return redirect("console:key", tenant=tenant.pk, public_id=public_id)
    context = {
        **_key_context(request, api_key),
        "values": values,
        "chosen": words(values["allowed_endpoints"]) or (),
        "endpoints": ENDPOINTS,
    }
    return errors.render("console/keys/detail.html", context)


@tenant_page(read=Permission.KEYS_READ, write=Permission.KEYS_WRITE)
def limits(request: HttpRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    """Show the key's limits with the tenant's; POST replaces them, and an empty field lifts one."""
    api_key = api_key_get(tenant=tenant, public_id=public_id)

    def current() -> dict[str, str]:
        return limits_shown(key_limits_get(api_key=api_key))

    values, book = current(), price_book_default()
    currency = book.currency if book else "USD"
    errors = LimitsErrors(request, currency=currency, conflict_field="key", shown=values)
    if request.method == "POST":
        values = {name: request.POST.get(name, "").strip() for name in values}
        with errors, unchanged(request, row=api_key, shown=current):
            key_limits_set(api_key=api_key, by=page_access(request), **limits_entered(values))
            messages.success(request, _("Limits saved. They take effect within a second."))
            return redirect("console:key-limits", tenant=tenant.pk, public_id=public_id)
    context = {
        **_key_context(request, api_key),
        "values": values,
        "most": limits_shown(tenant_limits_get(tenant=tenant)),
        "currency": currency,
    }
    return errors.render("console/keys/limits.html", context)


def words(text: object) -> list[str] | None:
    """Split a list at commas or spaces; None for an empty field, which restricts nothing."""
    return [word for word in re.split(r"[\s,]+", str(text)) if word] or None


def _key_context(request: HttpRequest, api_key: ApiKey) -> dict[str, Any]:
    changeable = api_key.is_live and may_change_key(page_access(request), api_key)
    return {"key": api_key, "changeable": changeable}


def _form_values(api_key: ApiKey) -> dict[str, str]:
    expires = api_key.expires_at
    shown = {name: ", ".join(getattr(api_key, name) or ()) for name in _LISTS}
    return {**shown, "expires_at": "" if expires is None else expires.astimezone(dt.UTC).strftime(_MINUTE)}


def _changes(before: Mapping[str, str], values: Mapping[str, str]) -> dict[str, Any]:
    """Return the changed values, None for an empty one; an unchanged expiry keeps its seconds."""
    changed = {name: text for name, text in values.items() if text != before[name]}
    return {name: words(text) if name in _LISTS else text or None for name, text in changed.items()}

"""Limits of one key, within its tenant's limits."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from controlplane.billing.selectors import price_book_default
from controlplane.console.keys.limits_form import limits_entered, limits_errors, limits_shown
from controlplane.console.pages import page_access, tenant_page
from controlplane.console.seen import seen_again, seen_tag, unchanged
from controlplane.errors import ControlPlaneError
from controlplane.tenants.access import may_change_key
from controlplane.tenants.limits.selectors import key_limits_get, tenant_limits_get
from controlplane.tenants.limits.services import key_limits_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_get


@require_http_methods(["GET", "POST"])
@tenant_page(Permission.KEYS_READ, Permission.KEYS_WRITE)
def detail(request: HttpRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    """Show the key's limits with the tenant's; POST replaces them, and an empty field lifts one."""
    api_key = api_key_get(tenant=tenant, public_id=public_id)

    def current() -> dict[str, str]:
        return limits_shown(key_limits_get(api_key=api_key))

    values, errors = current(), dict[str, str]()
    seen, book = seen_tag(values), price_book_default()
    currency = book.currency if book else "USD"
    if request.method == "POST":
        values = {name: request.POST.get(name, "").strip() for name in values}
        try:
            with unchanged(request, row=api_key, shown=current):
                key_limits_set(api_key=api_key, by=page_access(request), **limits_entered(values))
        except ControlPlaneError as error:
            errors = limits_errors(error, currency=currency, conflict_field="key")
            seen = seen_again(request, error)
        else:
            messages.success(request, _("Limits saved. They take effect within a second."))
            return redirect("console:key-limits", tenant=tenant.pk, public_id=public_id)
    context = {
        "key": api_key,
        "changeable": api_key.is_live and may_change_key(page_access(request), api_key),
        "values": values,
        "errors": errors,
        "seen": seen,
        "most": limits_shown(tenant_limits_get(tenant=tenant)),
        "currency": currency,
    }
    return render(request, "console/keys/limits.html", context, status=422 if errors else 200)

"""API keys: made and shown once, revoked for good."""

from __future__ import annotations

import datetime as dt
from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.console.pages import field_errors, tenant_page
from controlplane.console.views.playground import KEY_NAME
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.tenants.models import ApiKey, Tenant, User
from controlplane.tenants.selectors import api_key_get, api_key_list
from controlplane.tenants.services import api_key_create, api_key_revoke

LIFETIMES: Final = {
    "": gettext_lazy("Never expires"),
    "30": gettext_lazy("30 days"),
    "90": gettext_lazy("90 days"),
    "365": gettext_lazy("1 year"),
}


@never_cache
@require_http_methods(["GET", "POST"])
@tenant_page
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The list and the form; the answer to the form is the only page that ever shows the secret."""
    context: dict[str, object] = {"lifetimes": LIFETIMES, "values": {"scopes": ["inference"], "lifetime": ""}}
    status = 200
    if request.method == "POST":
        values: dict[str, object] = {
            "name": request.POST.get("name", ""),
            "scopes": request.POST.getlist("scopes"),
            "lifetime": request.POST.get("lifetime", ""),
        }
        try:
            context["created"], context["secret"] = _create(request, tenant, values)
        except ControlPlaneError as error:
            context |= {"values": values, "errors": field_errors(error, conflict_field="name")}
            status = 422
    now = timezone.now()
    keys = api_key_list(tenant=tenant).exclude(name=KEY_NAME, expires_at__lte=now)
    context |= {"keys": keys, "now": now}
    is_htmx = request.headers.get("HX-Request") == "true"
    template = "console/keys/body.html" if is_htmx else "console/keys/index.html"
    return render(request, template, context, status=status)


def _create(request: HttpRequest, tenant: Tenant, values: dict[str, object]) -> tuple[ApiKey, str]:
    assert isinstance(request.user, User)
    lifetime = str(values["lifetime"])
    if lifetime not in LIFETIMES:
        raise InvalidInputError(_("choose one of the lifetimes"), field="lifetime")
    if len(str(values["name"])) > 100:
        raise InvalidInputError(_("a key's name has at most 100 characters"), field="name")
    return api_key_create(
        tenant=tenant,
        name=str(values["name"]),
        scopes=list(values["scopes"]),  # type: ignore[call-overload]
        created_by=request.user,
        expires_at=timezone.now() + dt.timedelta(days=int(lifetime)) if lifetime else None,
    )


@require_POST
@tenant_page
def revoke(request: HttpRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    """Ends a key."""
    api_key = api_key_revoke(api_key=api_key_get(tenant=tenant, public_id=public_id))
    messages.success(
        request, _("Key “%(name)s” is revoked, everywhere within a second.") % {"name": api_key.name}
    )
    return redirect("console:keys", tenant=tenant.pk)

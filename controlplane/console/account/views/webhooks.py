"""Webhooks: endpoints, their secrets (shown once), and the result of each delivery."""

from __future__ import annotations

import datetime as dt

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.console.keys.views.keys import OVERLAPS
from controlplane.console.pages import field_errors, tenant_page
from controlplane.console.seen import seen_again, seen_tag, unchanged
from controlplane.errors import ControlPlaneError, InvalidInputError
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Permission
from controlplane.webhooks.events import CHOOSABLE, EVENTS
from controlplane.webhooks.models import WebhookEndpoint
from controlplane.webhooks.selectors import delivery_get, delivery_list, endpoint_get, endpoint_list
from controlplane.webhooks.services import (
    delivery_resend,
    endpoint_create,
    endpoint_delete,
    endpoint_rotate,
    endpoint_test,
    endpoint_update,
)

SHOWN = 50


@never_cache
@require_http_methods(["GET", "POST"])
@tenant_page(Permission.WEBHOOKS_READ, Permission.WEBHOOKS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List endpoints and show the form; only the answer to the form shows the secret."""
    context: dict[str, object] = {"values": {"events": ["adapter.version.ready", "adapter.version.refused"]}}
    status = 200
    if request.method == "POST":
        assert isinstance(request.user, User)
        values = {
            "url": request.POST.get("url", "").strip(),
            "description": request.POST.get("description", ""),
        }
        events = request.POST.getlist("events")
        try:
            created, secret = endpoint_create(tenant=tenant, events=events, created_by=request.user, **values)
            context |= {"created": created, "secret": secret}
        except ControlPlaneError as error:
            errors = field_errors(error, conflict_field="url")
            context |= {"values": {**values, "events": events}, "errors": errors}
            status = 422
    context |= {"endpoints": endpoint_list(tenant=tenant), "choices": _choices()}
    return render(request, "console/webhooks/index.html", context, status=status)


@never_cache
@require_http_methods(["GET", "POST"])
@tenant_page(Permission.WEBHOOKS_READ, Permission.WEBHOOKS_WRITE)
def detail(request: HttpRequest, tenant: Tenant, endpoint_id: str) -> HttpResponse:
    """Show one endpoint: its last deliveries, and its settings."""
    endpoint = endpoint_get(tenant=tenant, endpoint_id=endpoint_id)
    context: dict[str, object] = {}

    def current() -> dict[str, str]:
        return _settings_values(endpoint_get(tenant=tenant, endpoint_id=endpoint_id))

    if request.method == "POST":
        enabled = request.POST.get("enabled") == "on"
        changes = {"url": request.POST.get("url", "").strip(), "events": request.POST.getlist("events")}
        try:
            with unchanged(request, row=endpoint, shown=current):
                endpoint_update(endpoint=endpoint, enabled=enabled, **changes)
        except ControlPlaneError as error:
            context = {"values": changes | {"enabled": enabled}, "seen": seen_again(request, error)}
            context["errors"] = field_errors(error, conflict_field="url")
        else:
            messages.success(request, _("Endpoint updated."))
            return redirect("console:webhook", tenant=tenant.pk, endpoint_id=endpoint.pk)
    return _page(request, endpoint, context, status=422 if context else 200)


def _page(
    request: HttpRequest, endpoint: WebhookEndpoint, more: dict[str, object], status: int = 200
) -> HttpResponse:
    context = {
        "endpoint": endpoint,
        "values": {"url": endpoint.url, "events": endpoint.events, "enabled": endpoint.disabled_at is None},
        "seen": seen_tag(_settings_values(endpoint_get(tenant=endpoint.tenant, endpoint_id=endpoint.pk))),
        "deliveries": delivery_list(endpoint=endpoint)[:SHOWN],
        "choices": _choices(),
        "overlaps": OVERLAPS,
        **more,
    }
    return render(request, "console/webhooks/detail.html", context, status=status)


@never_cache
@require_POST
@tenant_page(Permission.WEBHOOKS_WRITE)
def rotate(request: HttpRequest, tenant: Tenant, endpoint_id: str) -> HttpResponse:
    """Create a new secret; only this answer shows it."""
    endpoint = endpoint_get(tenant=tenant, endpoint_id=endpoint_id)
    hours = request.POST.get("overlap", "")
    try:
        if hours not in OVERLAPS:
            raise InvalidInputError(_("choose one of the times"), field="overlap")
        endpoint, secret = endpoint_rotate(endpoint=endpoint, overlap=dt.timedelta(hours=int(hours)))
    except ControlPlaneError as error:
        messages.error(request, str(error))
        return redirect("console:webhook", tenant=tenant.pk, endpoint_id=endpoint.pk)
    return _page(request, endpoint, {"secret": secret})


@require_POST
@tenant_page(Permission.WEBHOOKS_WRITE)
def test(request: HttpRequest, tenant: Tenant, endpoint_id: str) -> HttpResponse:
    """Send a `webhook.test`."""
    endpoint = endpoint_get(tenant=tenant, endpoint_id=endpoint_id)
    try:
        endpoint_test(endpoint=endpoint)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Test event sent. The response appears below within seconds."))
    return redirect("console:webhook", tenant=tenant.pk, endpoint_id=endpoint.pk)


@require_POST
@tenant_page(Permission.WEBHOOKS_WRITE)
def resend(request: HttpRequest, tenant: Tenant, endpoint_id: str, delivery_id: int) -> HttpResponse:
    """Send a delivery again."""
    endpoint = endpoint_get(tenant=tenant, endpoint_id=endpoint_id)
    delivery = delivery_get(endpoint=endpoint, delivery_id=delivery_id)
    try:
        delivery_resend(delivery=delivery)
    except ControlPlaneError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("Event resent."))
    return redirect("console:webhook", tenant=tenant.pk, endpoint_id=endpoint.pk)


@require_POST
@tenant_page(Permission.WEBHOOKS_WRITE)
def delete(request: HttpRequest, tenant: Tenant, endpoint_id: str) -> HttpResponse:
    """Delete an endpoint with its deliveries."""
    endpoint_delete(endpoint=endpoint_get(tenant=tenant, endpoint_id=endpoint_id))
    messages.success(request, _("Endpoint deleted."))
    return redirect("console:webhooks", tenant=tenant.pk)


def _settings_values(endpoint: WebhookEndpoint) -> dict[str, str]:
    """Return the values that the settings form replaces."""
    enabled = "yes" if endpoint.disabled_at is None else "no"
    return {"url": endpoint.url, "events": ", ".join(endpoint.events), "enabled": enabled}


def _choices() -> list[tuple[str, str]]:
    return [(name, EVENTS[name]) for name in CHOOSABLE]

"""Webhooks: endpoints, their secrets (shown once), and the result of each delivery."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from controlplane.console.form_errors import FormErrors, RefusalMessage
from controlplane.console.keys.views.keys import OVERLAPS
from controlplane.console.pages import page_user, tenant_page
from controlplane.console.seen import unchanged
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant
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
@tenant_page(read=Permission.WEBHOOKS_READ, write=Permission.WEBHOOKS_WRITE)
def index(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """List endpoints and show the form; only the answer to the form shows the secret."""
    context: dict[str, object] = {"values": {"events": ["adapter.version.ready", "adapter.version.refused"]}}
    errors = FormErrors(request, conflict_field="url")
    if request.method == "POST":
        values: dict[str, Any] = {
            "url": request.POST.get("url", "").strip(),
            "description": request.POST.get("description", ""),
            "events": request.POST.getlist("events"),
        }
        with errors:
            created, secret = endpoint_create(tenant=tenant, created_by=page_user(request), **values)
            context |= {"created": created, "secret": secret}
        if errors:
            context["values"] = values
    context |= {"endpoints": endpoint_list(tenant=tenant), "choices": _choices()}
    return errors.render("console/webhooks/index.html", context)


@never_cache
@tenant_page(read=Permission.WEBHOOKS_READ, write=Permission.WEBHOOKS_WRITE)
def detail(request: HttpRequest, tenant: Tenant, endpoint_id: str) -> HttpResponse:
    """Show one endpoint: its last deliveries, and its settings."""
    endpoint = endpoint_get(tenant=tenant, endpoint_id=endpoint_id)
    errors = _settings_errors(request, endpoint)
    context: dict[str, object] = {}
    if request.method == "POST":
        enabled = request.POST.get("enabled") == "on"
        changes = {"url": request.POST.get("url", "").strip(), "events": request.POST.getlist("events")}
        context = {"values": changes | {"enabled": enabled}}
        with errors, unchanged(request, row=endpoint, shown=lambda: _settings_values(endpoint)):
            endpoint_update(endpoint=endpoint, enabled=enabled, **changes)
            messages.success(request, _("Endpoint updated."))
            return redirect("console:webhook", tenant=tenant.pk, endpoint_id=endpoint.pk)
    return _page(endpoint, errors, context)


def _settings_errors(request: HttpRequest, endpoint: WebhookEndpoint) -> FormErrors:
    return FormErrors(request, conflict_field="url", shown=_settings_values(endpoint))


def _page(endpoint: WebhookEndpoint, errors: FormErrors, more: dict[str, object]) -> HttpResponse:
    context = {
        "endpoint": endpoint,
        "values": {"url": endpoint.url, "events": endpoint.events, "enabled": endpoint.disabled_at is None},
        "deliveries": delivery_list(endpoint=endpoint)[:SHOWN],
        "choices": _choices(),
        "overlaps": OVERLAPS,
        **more,
    }
    return errors.render("console/webhooks/detail.html", context)


@never_cache
@tenant_page(write=Permission.WEBHOOKS_WRITE)
def rotate(request: HttpRequest, tenant: Tenant, endpoint_id: str) -> HttpResponse:
    """Create a new secret; only this answer shows it."""
    endpoint = endpoint_get(tenant=tenant, endpoint_id=endpoint_id)
    hours = request.POST.get("overlap", "")
    with RefusalMessage(request):
        if hours not in OVERLAPS:
            raise InvalidInputError(_("choose one of the times"), field="overlap")
        endpoint, secret = endpoint_rotate(endpoint=endpoint, overlap=dt.timedelta(hours=int(hours)))
        return _page(endpoint, _settings_errors(request, endpoint), {"secret": secret})
    return redirect("console:webhook", tenant=tenant.pk, endpoint_id=endpoint.pk)


@tenant_page(write=Permission.WEBHOOKS_WRITE)
def test(request: HttpRequest, tenant: Tenant, endpoint_id: str) -> HttpResponse:
    """Send a `webhook.test`."""
    endpoint = endpoint_get(tenant=tenant, endpoint_id=endpoint_id)
    with RefusalMessage(request):
        endpoint_test(endpoint=endpoint)
        messages.success(request, _("Test event sent. The response appears below within seconds."))
    return redirect("console:webhook", tenant=tenant.pk, endpoint_id=endpoint.pk)


@tenant_page(write=Permission.WEBHOOKS_WRITE)
def resend(request: HttpRequest, tenant: Tenant, endpoint_id: str, delivery_id: int) -> HttpResponse:
    """Send a delivery again."""
    endpoint = endpoint_get(tenant=tenant, endpoint_id=endpoint_id)
    delivery = delivery_get(endpoint=endpoint, delivery_id=delivery_id)
    with RefusalMessage(request):
        delivery_resend(delivery=delivery)
        messages.success(request, _("Event resent."))
    return redirect("console:webhook", tenant=tenant.pk, endpoint_id=endpoint.pk)


@tenant_page(write=Permission.WEBHOOKS_WRITE)
def delete(request: HttpRequest, tenant: Tenant, endpoint_id: str) -> HttpResponse:
    """Delete an endpoint with its deliveries."""
    endpoint_delete(endpoint=endpoint_get(tenant=tenant, endpoint_id=endpoint_id))
    messages.success(request, _("Endpoint deleted."))
    return redirect("console:webhooks", tenant=tenant.pk)


def _settings_values(endpoint: WebhookEndpoint) -> dict[str, str]:
    """Return the values that the settings form replaces, as they are now."""
    endpoint = endpoint_get(tenant=endpoint.tenant, endpoint_id=endpoint.pk)
    enabled = "yes" if endpoint.disabled_at is None else "no"
    return {"url": endpoint.url, "events": ", ".join(endpoint.events), "enabled": enabled}


def _choices() -> list[tuple[str, str]]:
    return [(name, EVENTS[name]) for name in CHOOSABLE]

"""Webhooks for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.platform.http.read_only_admin import ReadOnlyAdmin
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(ReadOnlyAdmin):
    list_display = ("id", "tenant", "url", "failing_since", "disabled_at", "disabled_reason")
    search_fields = ("id", "tenant__id", "url")
    exclude = ("secret", "old_secret")


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(ReadOnlyAdmin):
    list_display = ("id", "event", "endpoint", "status", "attempts", "last_status", "last_at", "next_at")
    list_filter = ("status",)
    search_fields = ("event__id", "endpoint__id")
    list_select_related = ("event", "endpoint")

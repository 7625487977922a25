"""Usage for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.metering.models import DeadUsageEvent, UsageEventRow, UsageRollup
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(UsageEventRow)
class UsageEventAdmin(ReadOnlyAdmin):
    list_display = ("day", "tenant", "request_id", "base_model", "adapter", "status", "completion_tokens")
    search_fields = ("request_id",)
    list_filter = ("status",)


@admin.register(UsageRollup)
class UsageRollupAdmin(ReadOnlyAdmin):
    list_display = (
        "day",
        "tenant",
        "base_model",
        "adapter",
        "requests",
        "prompt_tokens",
        "completion_tokens",
    )
    list_filter = ("day",)


@admin.register(DeadUsageEvent)
class DeadUsageEventAdmin(ReadOnlyAdmin):
    list_display = ("stream_id", "reason", "received_at")

"""Tenants that store prompts, for staff. The prompts themselves are shown to the tenant's members only."""

from __future__ import annotations

from django.contrib import admin

from controlplane.metering.prompt_log.models import PromptLog
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(PromptLog)
class PromptLogAdmin(ReadOnlyAdmin):
    list_display = ("tenant", "days", "begun_at", "begun_by")
    search_fields = ("tenant__id",)
    exclude = ("sealed_private_key",)

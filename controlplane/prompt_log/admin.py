"""Who keeps prompts, for staff. What is kept is shown to the tenant's own people alone."""

from __future__ import annotations

from django.contrib import admin

from controlplane.http.read_only_admin import ReadOnlyAdmin
from controlplane.prompt_log.models import PromptLog


@admin.register(PromptLog)
class PromptLogAdmin(ReadOnlyAdmin):
    list_display = ("tenant", "days", "begun_at", "begun_by")
    search_fields = ("tenant__id",)
    exclude = ("sealed_private_key",)

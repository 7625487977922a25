"""Source credentials for staff, without their secrets."""

from __future__ import annotations

from django.contrib import admin

from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(SourceCredential)
class SourceCredentialAdmin(ReadOnlyAdmin):
    list_display = ("name", "tenant", "kind", "endpoint", "created_at", "used_at")
    search_fields = ("tenant__id", "name")
    exclude = ("sealed_secret",)

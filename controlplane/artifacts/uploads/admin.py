"""Uploads for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.artifacts.uploads.models import Upload
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(Upload)
class UploadAdmin(ReadOnlyAdmin):
    list_display = ("id", "tenant", "name", "offset", "size", "expires_at", "registered_at")
    search_fields = ("tenant__id", "name")

"""Uploads for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.http.read_only_admin import ReadOnlyAdmin
from controlplane.uploads.models import Upload


@admin.register(Upload)
class UploadAdmin(ReadOnlyAdmin):
    list_display = ("id", "tenant", "name", "offset", "size", "expires_at", "registered_at")
    search_fields = ("tenant__id", "name")

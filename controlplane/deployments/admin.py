"""Copies for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.deployments.models import Copy
from controlplane.http.read_only_admin import ReadOnlyAdmin


@admin.register(Copy)
class CopyAdmin(ReadOnlyAdmin):
    list_display = ("id", "base_model", "kind", "url", "created_at")

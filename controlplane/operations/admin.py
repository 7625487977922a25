"""Deletions of tenants for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.operations.models import TenantDeletion
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(TenantDeletion)
class TenantDeletionAdmin(ReadOnlyAdmin):
    list_display = ("tenant", "requested_by", "requested_at", "purge_after", "purged_at")
    search_fields = ("tenant",)

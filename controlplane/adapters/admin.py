"""Adapters for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.adapters.models import Adapter, AdapterVersion, Alias, AliasArm
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(Adapter)
class AdapterAdmin(ReadOnlyAdmin):
    list_display = ("name", "tenant", "base_model", "created_at")
    search_fields = ("name", "tenant__id")


@admin.register(AdapterVersion)
class AdapterVersionAdmin(ReadOnlyAdmin):
    list_display = ("adapter", "number", "status", "rank", "size_bytes", "created_at")
    list_filter = ("status",)


@admin.register(Alias)
class AliasAdmin(ReadOnlyAdmin):
    list_display = ("adapter", "name", "version", "moved_at")


@admin.register(AliasArm)
class AliasArmAdmin(ReadOnlyAdmin):
    list_display = ("alias", "version", "percent")

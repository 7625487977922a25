"""The route table for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.platform.http.read_only_admin import ReadOnlyAdmin
from controlplane.routes.models import RouteDelta, RouteEntryRow


@admin.register(RouteEntryRow)
class RouteEntryAdmin(ReadOnlyAdmin):
    list_display = ("path",)
    search_fields = ("path",)


@admin.register(RouteDelta)
class RouteDeltaAdmin(ReadOnlyAdmin):
    list_display = ("version", "path", "created_at")

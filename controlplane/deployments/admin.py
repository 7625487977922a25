"""Django admin pages for deployments and copies (staff only)."""

from __future__ import annotations

from django.contrib import admin

from controlplane.deployments.models import AdapterRule, Copy, Deployment, DeploymentStep, Placement, Target
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(Copy)
class CopyAdmin(ReadOnlyAdmin):
    list_display = ("id", "base_model", "kind", "url", "region", "endpoint", "component", "created_at")


@admin.register(Target)
class TargetAdmin(ReadOnlyAdmin):
    list_display = ("name", "kind", "region", "endpoint_url", "host", "created_at")


@admin.register(Deployment)
class DeploymentAdmin(ReadOnlyAdmin):
    list_display = ("name", "target", "base_model", "hosting", "status", "reason", "observed_at")
    list_filter = ("status",)


@admin.register(Placement)
class PlacementAdmin(ReadOnlyAdmin):
    list_display = ("engine_name", "deployment", "status", "resource", "reason")
    search_fields = ("engine_name",)


@admin.register(DeploymentStep)
class DeploymentStepAdmin(ReadOnlyAdmin):
    list_display = ("at", "deployment", "action", "resource", "outcome", "cause", "actor")


@admin.register(AdapterRule)
class AdapterRuleAdmin(ReadOnlyAdmin):
    list_display = ("engine_name", "deployment", "copies", "on", "ready", "away", "status", "reason")
    search_fields = ("engine_name",)

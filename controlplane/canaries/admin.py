"""Rollouts for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.canaries.models import Rollout, RolloutDecision
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(Rollout)
class RolloutAdmin(ReadOnlyAdmin):
    list_display = ("adapter", "alias", "status", "step", "reason", "created_at")
    list_filter = ("status",)


@admin.register(RolloutDecision)
class RolloutDecisionAdmin(ReadOnlyAdmin):
    list_display = ("rollout", "kind", "percent", "reason", "by", "created_at")

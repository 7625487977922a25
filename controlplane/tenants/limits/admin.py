"""Limits for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.platform.http.read_only_admin import ReadOnlyAdmin
from controlplane.tenants.limits.models import ScopeLimits


@admin.register(ScopeLimits)
class ScopeLimitsAdmin(ReadOnlyAdmin):
    list_display = ("scope", "tenant", *ScopeLimits.AMOUNTS, "budget_period", "budget_alerted", "priority")
    search_fields = ("tenant__id",)

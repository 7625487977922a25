"""Monitoring for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.monitoring.models import AdapterQuarantine, Alarm, AlarmChange, MetricExport
from controlplane.platform.http.read_only_admin import ReadOnlyAdmin


@admin.register(Alarm)
class AlarmAdmin(ReadOnlyAdmin):
    list_display = ("name", "tenant", "metric", "state", "state_at", "next_at")
    list_filter = ("state", "metric")
    search_fields = ("name", "tenant__id")
    list_select_related = ("tenant",)


@admin.register(AlarmChange)
class AlarmChangeAdmin(ReadOnlyAdmin):
    list_display = ("alarm", "before", "after", "at", "notify_at")
    list_select_related = ("alarm",)


@admin.register(AdapterQuarantine)
class AdapterQuarantineAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "base_model", "times", "held_at", "until", "released_at")
    search_fields = ("engine_name",)


@admin.register(MetricExport)
class MetricExportAdmin(ReadOnlyAdmin):
    list_display = ("target", "exported_to", "failures", "next_at", "error")
    list_select_related = ("target",)

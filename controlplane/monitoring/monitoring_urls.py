"""REST routes of monitoring, included by `controlplane.api_urls`."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern, path

from controlplane.monitoring import api

MONITORING_ROUTES: Final[list[URLPattern]] = [
    path("adapter-metrics", api.AdaptersMetricsApi.as_view(), name="adapters-metrics"),
    path("adapters/<str:name>/metrics", api.AdapterMetricsApi.as_view(), name="adapter-metrics"),
    path(
        "tenants/<str:slug>/adapter-metrics",
        api.TenantAdaptersMetricsApi.as_view(),
        name="tenant-adapters-metrics",
    ),
    path(
        "tenants/<str:slug>/adapters/<str:name>/metrics",
        api.TenantAdapterMetricsApi.as_view(),
        name="tenant-adapter-metrics",
    ),
    path("alarms", api.AlarmsApi.as_view(), name="alarms"),
    path("alarms/<int:alarm_id>", api.AlarmApi.as_view(), name="alarm"),
    path("alarms/<int:alarm_id>/history", api.AlarmHistoryApi.as_view(), name="alarm-history"),
    path("fleet/alarms", api.FleetAlarmsApi.as_view(), name="fleet-alarms"),
    path("fleet/alarms/<int:operator_alarm_id>", api.FleetAlarmApi.as_view(), name="fleet-alarm"),
    path(
        "fleet/alarms/<int:operator_alarm_id>/history",
        api.FleetAlarmHistoryApi.as_view(),
        name="fleet-alarm-history",
    ),
]

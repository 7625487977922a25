"""REST routes of monitoring, included by `controlplane.api_urls`."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern

from controlplane.monitoring import api
from controlplane.monitoring.quarantines import api as quarantines_api
from controlplane.platform.http.routes import route

MONITORING_ROUTES: Final[list[URLPattern]] = [
    route("adapter-metrics", api.AdaptersMetricsApi, "adapters-metrics"),
    route("adapters/<str:name>/metrics", api.AdapterMetricsApi, "adapter-metrics"),
    route("tenants/<str:slug>/adapter-metrics", api.TenantAdaptersMetricsApi, "tenant-adapters-metrics"),
    route(
        "tenants/<str:slug>/adapters/<str:name>/metrics",
        api.TenantAdapterMetricsApi,
        "tenant-adapter-metrics",
    ),
    route("alarms", api.AlarmsApi, "alarms"),
    route("alarms/<int:alarm_id>", api.AlarmApi, "alarm"),
    route("alarms/<int:alarm_id>/history", api.AlarmHistoryApi, "alarm-history"),
    route("fleet/alarms", api.FleetAlarmsApi, "fleet-alarms"),
    route("fleet/alarms/<int:operator_alarm_id>", api.FleetAlarmApi, "fleet-alarm"),
    route("fleet/alarms/<int:operator_alarm_id>/history", api.FleetAlarmHistoryApi, "fleet-alarm-history"),
    route("fleet/quarantines", quarantines_api.QuarantinesApi, "fleet-quarantines"),
    route(
        "fleet/quarantines/<int:quarantine_id>/release",
        quarantines_api.QuarantineReleaseApi,
        "fleet-quarantine-release",
    ),
]

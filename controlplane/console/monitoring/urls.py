"""URLs of monitoring and alarms."""

from __future__ import annotations

from django.urls import path

from controlplane.console.monitoring.views import alarms, metrics, quarantines

tenant_urls = [
    path("monitoring/", metrics.index, name="monitoring"),
    path("monitoring/<slug:name>/", metrics.adapter, name="monitoring-adapter"),
    path("alarms/", alarms.index, name="alarms"),
    path("alarms/<int:alarm>/", alarms.detail, name="alarm"),
    path("alarms/<int:alarm>/delete", alarms.delete, name="alarm-delete"),
]
urls = [
    path("staff/tenants/<slug:slug>/monitoring/", metrics.staff_index, name="staff-monitoring"),
    path("staff/alarms/", alarms.staff_index, name="staff-alarms"),
    path("staff/alarms/<int:alarm>/", alarms.staff_detail, name="staff-alarm"),
    path("staff/alarms/<int:alarm>/delete", alarms.staff_delete, name="staff-alarm-delete"),
    path("staff/quarantines/", quarantines.index, name="staff-quarantines"),
    path("staff/quarantines/<int:quarantine>/release", quarantines.release, name="staff-quarantine-release"),
]

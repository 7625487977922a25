"""URLs of tenants, health and audit for staff."""

from __future__ import annotations

from django.urls import path

from controlplane.console.account.views import audit
from controlplane.console.staff.views import health, overview, staff, staff_limits

urls = [
    path("staff/", overview.index, name="staff-home"),
    path("staff/overview/health", overview.health, name="staff-home-health"),
    path("staff/tenants/", staff.tenants, name="staff-tenants"),
    path("staff/tenants/<slug:slug>/", staff.tenant, name="staff-tenant"),
    path("staff/tenants/<slug:slug>/limits", staff_limits.limits, name="staff-limits"),
    path("staff/tenants/<slug:slug>/quota", staff_limits.quota, name="staff-quota"),
    path("staff/audit/", audit.fleet, name="staff-audit"),
    path("staff/audit/export", audit.fleet_export, name="staff-audit-export"),
    path("staff/tenants/<slug:slug>/export", staff.export, name="staff-export"),
    path("staff/tenants/<slug:slug>/suspend", staff.suspend, name="staff-suspend"),
    path("staff/tenants/<slug:slug>/resume", staff.resume, name="staff-resume"),
    path("staff/tenants/<slug:slug>/delete", staff.delete, name="staff-delete"),
    path("staff/tenants/<slug:slug>/prepaid", staff.prepaid, name="staff-prepaid"),
    path("staff/tenants/<slug:slug>/top-up", staff.top_up, name="staff-top-up"),
    path("staff/tenants/<slug:slug>/cancel", staff.cancel, name="staff-cancel"),
    path("staff/health/", health.index, name="staff-health"),
    path("staff/health/status", health.status, name="staff-health-status"),
    path("staff/queues/", health.queues, name="staff-queues"),
    path("staff/queues/status", health.queues_status, name="staff-queue-status"),
    path("staff/queues/replay", health.replay, name="staff-queue-replay"),
]

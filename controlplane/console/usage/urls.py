"""URLs of usage, requests and hosting."""

from __future__ import annotations

from django.urls import path

from controlplane.console.usage.views import hosting, prompt_log, requests, usage, usage_sources

tenant_urls = [
    path("usage/", usage.index, name="usage"),
    path("usage/export", usage.explored, name="usage-export"),
    path("requests/", requests.index, name="requests"),
    path("requests/<str:request_id>/", requests.detail, name="request"),
    path("requests/<str:request_id>/prompt", prompt_log.read, name="request-prompt"),
    path("prompt-log/", prompt_log.index, name="prompt-log"),
    path("prompt-log/end", prompt_log.end, name="prompt-log-end"),
    path("hosting/", hosting.index, name="hosting"),
    path("usage.csv", usage.export, name="usage-csv"),
]
urls = [
    path("staff/usage-sources/", usage_sources.index, name="staff-usage-sources"),
    path("staff/usage-sources/<int:source>/delete", usage_sources.delete, name="staff-usage-source-delete"),
    path("staff/hosting/", hosting.fleet, name="staff-hosting"),
]

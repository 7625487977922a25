"""URLs of API keys, projects and service accounts."""

from __future__ import annotations

from django.urls import path

from controlplane.console.keys.views import key, keys, projects, service_accounts

tenant_urls = [
    path("keys/", keys.index, name="keys"),
    path("keys/<slug:public_id>/", key.detail, name="key"),
    path("keys/<slug:public_id>/limits", key.limits, name="key-limits"),
    path("keys/<slug:public_id>/rotate", keys.rotate, name="key-rotate"),
    path("keys/<slug:public_id>/revoke", keys.revoke, name="key-revoke"),
    path("projects/", projects.index, name="projects"),
    path("projects/<slug:project>/rename", projects.rename, name="project-rename"),
    path("projects/<slug:project>/archive", projects.archive, name="project-archive"),
    path("service-accounts/", service_accounts.index, name="service-accounts"),
    path("service-accounts/<slug:account>/role", service_accounts.set_role, name="service-account-role"),
    path("service-accounts/<slug:account>/disable", service_accounts.disable, name="service-account-disable"),
]

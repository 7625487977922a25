"""The web UI's addresses. The tenant stands in the address, so that no tab acts for another's tenant."""

from __future__ import annotations

from django.contrib.auth.views import LogoutView
from django.urls import include, path

from controlplane.console import pages
from controlplane.console.views import adapters, home, keys, playground, usage
from controlplane.console.views.login import Login

app_name = "console"

tenant_urls = [
    path("", home.home, name="home"),
    path("adapters/", adapters.index, name="adapters"),
    path("adapters/new", adapters.register, name="adapter-register"),
    path("adapters/<slug:name>/", adapters.detail, name="adapter"),
    path("adapters/<slug:name>/v<int:number>/status", adapters.version_status, name="version-status"),
    path("adapters/<slug:name>/aliases", adapters.alias_set, name="alias-set"),
    path("adapters/<slug:name>/aliases/<slug:alias>/delete", adapters.alias_delete, name="alias-delete"),
    path("adapters/<slug:name>/pin", adapters.pin, name="adapter-pin"),
    path("adapters/<slug:name>/delete", adapters.delete, name="adapter-delete"),
    path("playground/", playground.index, name="playground"),
    path("playground/key", playground.key, name="playground-key"),
    path("keys/", keys.index, name="keys"),
    path("keys/<slug:public_id>/revoke", keys.revoke, name="key-revoke"),
    path("usage/", usage.index, name="usage"),
    path("usage.csv", usage.export, name="usage-csv"),
]
urlpatterns = [
    path("", pages.entry, name="entry"),
    path("login", Login.as_view(), name="login"),
    path("logout", LogoutView.as_view(), name="logout"),
    path("t/<slug:tenant>/", include(tenant_urls)),
]

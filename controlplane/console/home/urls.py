"""URLs of the home page."""

from __future__ import annotations

from django.urls import path

from controlplane.console.home.views import find, home

tenant_urls = [
    path("", home.home, name="home"),
    path("find", find.tenant_find, name="find"),
    path("figures", home.figures, name="home-figures"),
    path("first-steps", home.first_steps, name="home-state"),
]
urls = [path("staff/find", find.staff_find, name="staff-find")]

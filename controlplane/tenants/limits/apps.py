from __future__ import annotations

from django.apps import AppConfig


class LimitsConfig(AppConfig):
    name = "controlplane.tenants.limits"

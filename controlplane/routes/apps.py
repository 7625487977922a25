from __future__ import annotations

from django.apps import AppConfig


class RoutesConfig(AppConfig):
    name = "controlplane.routes"

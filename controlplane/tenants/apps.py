from __future__ import annotations

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "controlplane.tenants"

    def ready(self) -> None:
        from controlplane.tenants import openapi  # noqa: F401  # registers by being imported

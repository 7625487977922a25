"""The audit app."""

from __future__ import annotations

from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "controlplane.platform.audit"

    def ready(self) -> None:
        from controlplane.platform.audit import checks  # noqa: F401  # registers by being imported

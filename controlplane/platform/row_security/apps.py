from __future__ import annotations

from django.apps import AppConfig


class RowSecurityConfig(AppConfig):
    name = "controlplane.platform.row_security"

    def ready(self) -> None:
        from controlplane.platform.row_security import checks  # noqa: F401  # registers by being imported

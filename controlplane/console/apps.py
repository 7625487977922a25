"""The console app, the web UI."""

from __future__ import annotations

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """Has views, forms and template tags; no models."""

    name = "controlplane.console"
    verbose_name = "Console"

    def ready(self) -> None:
        from controlplane.console.account import events  # noqa: F401  # its receivers register by being imported

"""The billing app."""

from __future__ import annotations

from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "controlplane.billing"

    def ready(self) -> None:
        from controlplane.billing import checks  # noqa: F401  # registers by being imported

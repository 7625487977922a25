from __future__ import annotations

from django.apps import AppConfig


class ReportsConfig(AppConfig):
    name = "controlplane.billing.reports"

    def ready(self) -> None:
        """Let comparisons look up rates in the price table."""
        from controlplane.billing.reports.instance_rates import rate_in_force
        from controlplane.optimization.instance_rates import rate_table_use

        rate_table_use(rate_in_force)

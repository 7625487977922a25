"""Prices of machines, maintained by operators."""

from __future__ import annotations

from typing import Final

from django.core.validators import MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

HOUR: Final = 3600
"""Seconds of an hour."""


class Plan(models.TextChoices):
    """How an instance is paid for."""

    ON_DEMAND = "on_demand", _("On demand")
    SAVINGS_PLAN_1Y = "savings_plan_1y", _("1-year SageMaker Savings Plan")


class InstancePrice(models.Model):
    """Hourly price of an instance type in a region from a UTC day on; rows are only ever added.

    A row has a price, or says how far the price is below that of another type of the same region and plan.
    """

    instance_type = models.CharField(max_length=40)
    region = models.CharField(max_length=30)
    plan = models.CharField(
        max_length=20, choices=Plan.choices, default=Plan.ON_DEMAND, db_default=Plan.ON_DEMAND
    )
    effective_from = models.DateField(help_text="UTC day.")
    currency = models.CharField(max_length=3, default="USD")
    hour_nano = models.BigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="Nano-units per hour; null if only the difference to `reference_type` is published.",
    )
    reference_type = models.CharField(
        max_length=40, blank=True, default="", db_default="", help_text="Instance type compared with."
    )
    percent_below = models.DecimalField(
        max_digits=5,
        decimal_places=2,
        null=True,
        blank=True,
        help_text="Percent by which the price is below that of `reference_type`.",
    )
    source = models.CharField(max_length=300, help_text="Where the price is published.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("instance_type", "region", "plan", "effective_from")
        constraints = [
            models.UniqueConstraint(
                fields=["instance_type", "region", "plan", "effective_from"], name="instance_price_once"
            ),
            models.CheckConstraint(condition=models.Q(hour_nano__gte=0), name="instance_price_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.instance_type} in {self.region} from {self.effective_from} ({self.get_plan_display()})"

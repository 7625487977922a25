"""Prices of machines, maintained by operators."""

from __future__ import annotations

from typing import Final

from django.core.validators import MinValueValidator
from django.db import models

HOUR: Final = 3600
"""Seconds of an hour."""


class InstancePrice(models.Model):
    """Hourly price of an instance type in a region from a UTC day on; rows are only ever added."""

    instance_type = models.CharField(max_length=40)
    region = models.CharField(max_length=30)
    effective_from = models.DateField(help_text="UTC day.")
    currency = models.CharField(max_length=3, default="USD")
    hour_nano = models.BigIntegerField(validators=[MinValueValidator(0)], help_text="Nano-units per hour.")
    source = models.CharField(max_length=300, help_text="Where the price is published.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("instance_type", "region", "effective_from")
        constraints = [
            models.UniqueConstraint(
                fields=["instance_type", "region", "effective_from"], name="instance_price_once"
            ),
            models.CheckConstraint(condition=models.Q(hour_nano__gte=0), name="instance_price_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.instance_type} in {self.region} from {self.effective_from}"

    def cost_nano(self, seconds: int) -> int:
        """Return the cost of `seconds` of one instance in nano-units, rounded half up."""
        return (2 * seconds * self.hour_nano + HOUR) // (2 * HOUR)

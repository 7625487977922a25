"""Rate limits, budgets and priorities of tenants and API keys."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from contracts.limits import MAX_AMOUNT
from controlplane.tenants.models import ApiKey, Tenant

_BOUNDS = (MinValueValidator(0), MaxValueValidator(MAX_AMOUNT))


class ScopeLimits(models.Model):
    """Limits of a tenant (no key) or of one key; null is no own limit."""

    class Period(models.TextChoices):
        DAY = "day"
        MONTH = "month"

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="limits")
    api_key = models.OneToOneField(
        ApiKey,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="limits",
        help_text="Null for the tenant's own limits.",
    )
    requests_per_minute = models.BigIntegerField(null=True, blank=True, validators=_BOUNDS)
    tokens_per_minute = models.BigIntegerField(null=True, blank=True, validators=_BOUNDS)
    concurrency = models.BigIntegerField(null=True, blank=True, validators=_BOUNDS)
    budget_nano = models.BigIntegerField(
        null=True,
        blank=True,
        validators=_BOUNDS,
        help_text="Nano-units (1e-9) of the default price book's currency per period. Further requests are "
        "refused.",
    )
    budget_period = models.CharField(max_length=5, choices=Period.choices, default=Period.MONTH)
    budget_alert_percent = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=(MinValueValidator(1), MaxValueValidator(100)),
        help_text="Share of the budget from which responses carry a warning.",
    )
    budget_alerted = models.CharField(
        max_length=10, blank=True, editable=False, help_text="Period (UTC) of the last alert."
    )
    priority = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=(MaxValueValidator(9),),
        help_text="0 (highest) to 9. Order of requests that wait for capacity.",
    )
    weight = models.FloatField(
        null=True,
        blank=True,
        validators=(MinValueValidator(0.01), MaxValueValidator(100)),
        help_text="For a tenant: its share of a busy worker relative to other tenants. Defaults to 1.",
    )
    prepaid_stop = models.BooleanField(
        default=False,
        db_default=False,
        help_text="For a tenant: requests are refused once its prepaid balance and credits are used up.",
    )
    changed_at = models.DateTimeField(auto_now=True)

    AMOUNTS = ("requests_per_minute", "tokens_per_minute", "concurrency", "budget_nano")
    FIELDS = (*AMOUNTS, "budget_period", "budget_alert_percent", "priority", "weight", "prepaid_stop")

    class Meta:
        ordering = ("tenant", "api_key")
        verbose_name_plural = "scope limits"
        constraints = [
            models.UniqueConstraint(
                fields=["tenant"], condition=models.Q(api_key=None), name="limits_once_per_tenant"
            )
        ]

    def __str__(self) -> str:
        return self.scope

    @property
    def scope(self) -> str:
        """Scope id in the route table."""
        return f"key:{self.api_key_id}" if self.api_key_id else f"tenant:{self.tenant_id}"

    @property
    def budget_alert_nano(self) -> int | None:
        """Nano-units of spending at which the alert is sent; None for never."""
        if self.budget_nano is None or self.budget_alert_percent is None:
            return None
        return self.budget_nano * self.budget_alert_percent // 100

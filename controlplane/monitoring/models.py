"""Alarms on adapters' metrics, their history, and the progress of the export to CloudWatch."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from controlplane.adapters.models import Adapter
from controlplane.deployments.models import Deployment, Target
from controlplane.tenants.models import Tenant, User


class State(models.TextChoices):
    """State of an alarm, by Amazon CloudWatch's names."""

    OK = "OK", _("OK")
    ALARM = "ALARM", _("In alarm")
    INSUFFICIENT_DATA = "INSUFFICIENT_DATA", _("Insufficient data")


class Metric(models.TextChoices):
    """Metrics that alarms compare with their thresholds, in each period."""

    ERROR_RATE = "error_rate", _("Error rate (percent)")
    TTFT_P95 = "ttft_p95_ms", _("TTFT p95 (ms)")
    ITL_P95 = "itl_p95_ms", _("ITL p95 (ms)")
    REQUESTS_PER_MINUTE = "requests_per_minute", _("Requests per minute")
    NO_REQUESTS = "no_requests", _("No requests")


class Comparison(models.TextChoices):
    """How a value relates to the threshold if it breaches, by Amazon CloudWatch's names."""

    GREATER = "GreaterThanThreshold", _("greater than (>)")
    GREATER_OR_EQUAL = "GreaterThanOrEqualToThreshold", _("greater than or equal to (≥)")
    LESS = "LessThanThreshold", _("less than (<)")
    LESS_OR_EQUAL = "LessThanOrEqualToThreshold", _("less than or equal to (≤)")


SIGNS: Final = {
    Comparison.GREATER: ">",
    Comparison.GREATER_OR_EQUAL: "≥",
    Comparison.LESS: "<",
    Comparison.LESS_OR_EQUAL: "≤",
}


class MissingData(models.TextChoices):
    """How a period without a value is treated, by Amazon CloudWatch's names."""

    MISSING = "missing", _("missing (insufficient data)")
    IGNORE = "ignore", _("ignore (keep the state)")
    BREACHING = "breaching", _("breaching")
    NOT_BREACHING = "notBreaching", _("not breaching")


class Alarm(models.Model):
    """A threshold on one metric of a tenant's adapters, or of a deployment's copies.

    A tenant's alarm watches one of its adapters, or all of them together. The operator's alarm (without a
    tenant) watches any tenant's adapter, or a deployment.
    """

    tenant = models.ForeignKey(
        Tenant,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="alarms",
        help_text="Owner; null for the operator.",
    )
    name = models.CharField(max_length=100)
    description = models.CharField(max_length=500, blank=True)
    adapter = models.ForeignKey(
        Adapter,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="Watched adapter; null for all of the tenant's, or for a deployment.",
    )
    deployment = models.ForeignKey(
        Deployment, models.CASCADE, null=True, blank=True, related_name="+", help_text="Operator's alarms."
    )
    metric = models.CharField(max_length=30, choices=Metric.choices)
    comparison = models.CharField(max_length=30, choices=Comparison.choices)
    threshold = models.FloatField()
    period_seconds = models.PositiveIntegerField()
    evaluation_periods = models.PositiveSmallIntegerField()
    datapoints_to_alarm = models.PositiveSmallIntegerField()
    treat_missing_data = models.CharField(
        max_length=12, choices=MissingData.choices, default=MissingData.MISSING
    )
    notify_on = models.JSONField(help_text="States that send a notification when the alarm enters them.")
    email = models.BooleanField(default=True, help_text="Notify by e-mail besides webhooks.")
    webhook_tenant = models.ForeignKey(
        Tenant,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="Operator's alarms: tenant whose webhook endpoints get the event.",
    )
    enabled = models.BooleanField(default=True)
    state = models.CharField(max_length=20, choices=State.choices, default=State.INSUFFICIENT_DATA)
    state_reason = models.CharField(max_length=500, blank=True)
    state_at = models.DateTimeField(default=timezone.now, help_text="Time of the last change of state.")
    evaluated_to = models.DateTimeField(null=True, blank=True, help_text="End of the last evaluated period.")
    next_at = models.DateTimeField(
        null=True, blank=True, help_text="Time of the next evaluation; null while disabled."
    )
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name", "pk")
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="alarm_name_once"),
            models.UniqueConstraint(
                fields=["name"], condition=models.Q(tenant=None), name="operator_alarm_name_once"
            ),
        ]
        indexes = [
            models.Index(fields=["next_at"], condition=models.Q(next_at__isnull=False), name="alarm_due")
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def sign(self) -> str:
        """The comparison as a sign."""
        return SIGNS[Comparison(self.comparison)]


class AlarmChange(models.Model):
    """A change of an alarm's state, and the progress of its e-mail. Old rows are deleted."""

    alarm = models.ForeignKey(Alarm, models.CASCADE, related_name="changes")
    before = models.CharField(max_length=20, choices=State.choices)
    after = models.CharField(max_length=20, choices=State.choices)
    reason = models.CharField(max_length=500)
    values = models.JSONField(help_text="Values of the evaluated periods, oldest first; null for missing.")
    at = models.DateTimeField(default=timezone.now)
    notify_at = models.DateTimeField(
        null=True, blank=True, help_text="When the mail is due. Null if none is due or it was sent."
    )
    notify_attempts = models.PositiveSmallIntegerField(default=0)
    notified = models.JSONField(
        null=True, blank=True, help_text="Ids of users who have received the mail or no longer need it."
    )

    class Meta:
        ordering = ("-pk",)
        indexes = [
            models.Index(fields=["alarm", "-id"], name="alarm_change_listed"),
            models.Index(
                fields=["notify_at"], condition=models.Q(notify_at__isnull=False), name="alarm_change_due"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.alarm_id}: {self.before} to {self.after}"


class AdapterQuarantine(models.Model):
    """A time in which gateways hold back an adapter version, and the progress of its e-mail.

    Gateways decide it and share it in Redis. It has no foreign keys, so that it outlives what it names.
    """

    engine_name = models.CharField(max_length=200)
    tenant_slug = models.CharField(max_length=63)
    adapter = models.CharField(max_length=63)
    version = models.PositiveIntegerField()
    base_model = models.CharField(max_length=100)
    copies = models.JSONField(help_text="Ids of the copies whose engines died.")
    times = models.PositiveIntegerField(help_text="How often it was held back in a row.")
    held_at = models.DateTimeField()
    until = models.DateTimeField(help_text="End of the time; earlier if it is released.")
    released_at = models.DateTimeField(null=True, blank=True)
    notify_at = models.DateTimeField(
        null=True, blank=True, help_text="When the mail is due. Null if none is due or it was sent."
    )
    notify_attempts = models.PositiveSmallIntegerField(default=0)
    notified = models.JSONField(
        null=True, blank=True, help_text="Ids of users who have received the mail or no longer need it."
    )

    class Meta:
        ordering = ("-held_at", "-pk")
        constraints = [models.UniqueConstraint(fields=["engine_name", "held_at"], name="quarantine_once")]
        indexes = [
            models.Index(
                fields=["notify_at"], condition=models.Q(notify_at__isnull=False), name="quarantine_due"
            ),
            models.Index(fields=["-held_at", "-id"], name="quarantine_listed"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant_slug}/{self.adapter}@v{self.version}"

    @property
    def is_held(self) -> bool:
        """True while gateways refuse the version's requests."""
        return self.released_at is None and self.until > timezone.now()


class MetricExport(models.Model):
    """Progress of a target's export of metrics to CloudWatch."""

    target = models.OneToOneField(Target, models.CASCADE, related_name="metric_export")
    exported_to = models.DateTimeField(help_text="End of the last minute that was sent completely.")
    pending = models.JSONField(
        null=True, help_text="Unsent batches of the next minute; null before its metrics were read."
    )
    lease_until = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0, help_text="Consecutive failed runs.")
    next_at = models.DateTimeField(default=timezone.now, help_text="Time of the next attempt.")
    error = models.TextField(blank=True, help_text="Last failure; '' after a success.")

    def __str__(self) -> str:
        return f"{self.target_id} to {self.exported_to}"

"""Tenants' webhook endpoints, the outbox of events, and their deliveries."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from controlplane.tenants.models import Tenant, User


class WebhookEndpoint(models.Model):
    """A tenant's URL that receives events of chosen types. Its secrets are encrypted."""

    id = models.CharField(primary_key=True, max_length=40)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="webhook_endpoints")
    url = models.CharField(max_length=1000)
    description = models.CharField(max_length=200, blank=True)
    events = models.JSONField(help_text="List of event types.")
    secret = models.TextField(help_text="Sealed; signs.")
    old_secret = models.TextField(blank=True, help_text="Encrypted; signs as well until `old_secret_until`.")
    old_secret_until = models.DateTimeField(null=True, blank=True)
    failing_since = models.DateTimeField(
        null=True, blank=True, help_text="First failure since the last success."
    )
    disabled_at = models.DateTimeField(null=True, blank=True)
    disabled_reason = models.CharField(max_length=300, blank=True)
    notify_at = models.DateTimeField(
        null=True, blank=True, help_text="When the mail about its disabling is due."
    )
    notify_attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    notified = models.JSONField(
        null=True, blank=True, help_text="Ids of users who have received the mail or no longer need it."
    )
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "id")

    def __str__(self) -> str:
        return self.url

    @property
    def sealing_place(self) -> str:
        """Context to which `controlplane.platform.sealing` binds both secrets."""
        return f"webhook endpoint {self.pk}"

    @property
    def overlaps(self) -> bool:
        """True while the previous secret also signs, after a rotation."""
        return bool(self.old_secret) and (self.old_secret_until or timezone.now()) > timezone.now()


class WebhookEvent(models.Model):
    """An event, written in the transaction of its change if an endpoint subscribes to it."""

    id = models.CharField(
        primary_key=True, max_length=40, help_text="`webhook-id`, the same for all attempts."
    )
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="webhook_events")
    type = models.CharField(max_length=60)
    data = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    def __str__(self) -> str:
        return f"{self.type} {self.pk}"


class WebhookDelivery(models.Model):
    """The delivery of an event to an endpoint, and the endpoint's last answer."""

    class Status(models.TextChoices):
        PENDING = "pending"
        SENDING = "sending"
        DELIVERED = "delivered"
        FAILED = "failed"

    event = models.ForeignKey(WebhookEvent, models.CASCADE, related_name="deliveries")
    endpoint = models.ForeignKey(WebhookEndpoint, models.CASCADE, related_name="deliveries")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    next_at = models.DateTimeField(
        default=timezone.now, help_text="Next attempt while pending; end of the lease while sending."
    )
    queued_at = models.DateTimeField(null=True, blank=True)
    last_at = models.DateTimeField(null=True, blank=True)
    last_status = models.PositiveSmallIntegerField(null=True, blank=True, help_text="HTTP status.")
    last_answer = models.CharField(
        max_length=500, blank=True, help_text="First part of the response, or the error."
    )
    last_ms = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [models.UniqueConstraint(fields=["event", "endpoint"], name="webhook_delivery_once")]
        indexes = [
            models.Index(
                fields=["next_at"],
                condition=models.Q(status__in=("pending", "sending")),
                name="webhook_delivery_due",
            )
        ]

    def __str__(self) -> str:
        return f"{self.event_id} to {self.endpoint_id}"

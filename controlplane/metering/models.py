"""Usage events as they came, their sums by day, and what could not be read."""

from __future__ import annotations

from django.db import models

NAME = 200
"""Longest text that an event's name-like field may hold."""


class UsageEventRow(models.Model):
    """One attempt of one request. Rows are only ever added. Names, not keys: they outlive what they name."""

    event_id = models.UUIDField()
    day = models.DateField(help_text="UTC day of the UUIDv7 `event_id`.")
    tenant = models.CharField(max_length=NAME)
    project = models.CharField(max_length=NAME)
    key_id = models.CharField(max_length=NAME)
    request_id = models.CharField(max_length=NAME)
    attempt = models.IntegerField()
    requested_model = models.CharField(max_length=NAME)
    alias = models.CharField(max_length=NAME)
    arm = models.CharField(max_length=NAME)
    adapter = models.CharField(max_length=NAME, help_text="Engine name; '' for the base alone.")
    base_model = models.CharField(max_length=NAME)
    backend = models.CharField(max_length=NAME)
    endpoint = models.CharField(max_length=NAME)
    status = models.CharField(max_length=20)
    error_code = models.CharField(max_length=NAME)
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField(help_text="Of the prompt tokens.")
    completion_tokens = models.BigIntegerField()
    estimated = models.BooleanField()
    ttft_ms = models.FloatField(null=True)
    duration_ms = models.FloatField()
    started_at = models.BigIntegerField(help_text="Unix milliseconds.")
    gateway_id = models.CharField(max_length=NAME)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["day", "tenant", "request_id", "attempt"], name="usage_event_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.request_id}"


class UsageRollup(models.Model):
    """Sums of a day's events that agree in everything a report may group by."""

    day = models.DateField()
    tenant = models.CharField(max_length=NAME)
    project = models.CharField(max_length=NAME)
    key_id = models.CharField(max_length=NAME)
    adapter = models.CharField(max_length=NAME, help_text="Engine name; '' for the base alone.")
    alias = models.CharField(max_length=NAME)
    base_model = models.CharField(max_length=NAME)
    backend = models.CharField(max_length=NAME)
    status = models.CharField(max_length=20)
    requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()

    DIMENSIONS = ("day", "tenant", "project", "key_id", "adapter", "alias", "base_model", "backend", "status")
    SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                # The tenant first: a report reads one tenant's range of days.
                fields=[
                    "tenant", "day", "project", "key_id", "adapter", "alias", "base_model", "backend",
                    "status",
                ],
                name="usage_rollup_once",
            )
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.day} {self.tenant} {self.adapter or self.base_model}"


class DeadUsageEvent(models.Model):
    """A stream entry that is no usage event, kept with the reason so that nobody's usage disappears."""

    stream_id = models.CharField(max_length=50, unique=True)
    payload = models.TextField()
    reason = models.TextField()
    received_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.stream_id

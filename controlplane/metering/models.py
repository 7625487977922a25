"""Usage events as received, their sums by hour and day, and dead letters."""

from __future__ import annotations

from typing import ClassVar, Final

from django.db import models
from django.utils.translation import gettext_lazy as _

from controlplane.tenants.models import ServiceAccount

NAME = 200
"""Longest text of an event's name-like field."""
UNANSWERED: Final = ("error", "client_error")
"""Statuses of attempts that are not charged the price per request."""


class UsageEventRow(models.Model):
    """One attempt of one request. Rows are only ever added. Names, not keys: they outlive their objects.

    On PostgreSQL the table is partitioned by `day` (`controlplane.metering.partitions`).
    """

    event_id = models.UUIDField()
    day = models.DateField(help_text="UTC day of the UUIDv7 `event_id`.")
    hour = models.SmallIntegerField(help_text="UTC hour of that day.", db_default=0)
    tenant = models.CharField(max_length=NAME)
    project = models.CharField(max_length=NAME)
    key_id = models.CharField(max_length=NAME)
    request_id = models.CharField(max_length=NAME)
    attempt = models.IntegerField()
    requested_model = models.CharField(max_length=NAME)
    alias = models.CharField(max_length=NAME)
    arm = models.CharField(max_length=NAME)
    adapter = models.CharField(max_length=NAME, help_text="Engine name; '' for the base model.")
    base_model = models.CharField(max_length=NAME)
    operation = models.CharField(
        max_length=NAME, default="", db_default="", help_text="Endpoint's name, such as chat."
    )
    backend = models.CharField(max_length=NAME)
    endpoint = models.CharField(max_length=NAME)
    status = models.CharField(max_length=20)
    error_code = models.CharField(max_length=NAME)
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField(help_text="Part of the prompt tokens.")
    completion_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField(
        default=0, db_default=0, help_text="Part of the completion tokens."
    )
    images = models.BigIntegerField(default=0, db_default=0, help_text="Images in the prompt.")
    estimated = models.BooleanField()
    ttft_ms = models.FloatField(null=True)
    itl_ms = models.FloatField(null=True, help_text="Mean inter-token latency.")
    duration_ms = models.FloatField()
    started_at = models.BigIntegerField(help_text="Unix milliseconds.")
    gateway_id = models.CharField(max_length=NAME)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["day", "tenant", "request_id", "attempt"], name="usage_event_once"
            )
        ]
        indexes = [
            # Only requests by split aliases: a rollout compares the arms of one every few seconds.
            models.Index(
                fields=["tenant", "adapter", "started_at"],
                condition=models.Q(arm__gt=""),
                name="usage_event_arm",
            ),
            # For the request log, newest first: ids are UUIDv7, which sort by time.
            models.Index(fields=["tenant", "event_id"], name="usage_event_listed"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.request_id}"


class _Sums(models.Model):
    """Sums of events with equal values in every column that a report may group by."""

    day = models.DateField()
    tenant = models.CharField(max_length=NAME)
    project = models.CharField(max_length=NAME)
    key_id = models.CharField(max_length=NAME)
    adapter = models.CharField(max_length=NAME, help_text="Engine name; '' for the base model.")
    alias = models.CharField(max_length=NAME)
    arm = models.CharField(max_length=NAME, default="", db_default="")
    base_model = models.CharField(max_length=NAME)
    operation = models.CharField(
        max_length=NAME, default="", db_default="", help_text="Endpoint's name, such as chat."
    )
    backend = models.CharField(max_length=NAME)
    status = models.CharField(max_length=20)
    requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField(
        default=0, db_default=0, help_text="Part of the completion tokens."
    )
    images = models.BigIntegerField(default=0, db_default=0, help_text="Images in the prompts.")
    estimated_requests = models.BigIntegerField(
        default=0, db_default=0, help_text="Requests whose backend reported no usage."
    )

    DIMENSIONS: ClassVar[tuple[str, ...]] = (
        "day",
        "tenant",
        "project",
        "key_id",
        "adapter",
        "alias",
        "arm",
        "base_model",
        "operation",
        "backend",
        "status",
    )
    SUMS: ClassVar[tuple[str, ...]] = (
        "requests",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "reasoning_tokens",
        "images",
        "estimated_requests",
    )

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.day} {self.tenant} {self.adapter or self.base_model}"

    @property
    def answered(self) -> int:
        """Requests that did not end in an error: only these are charged the price per request."""
        return 0 if self.status in UNANSWERED else self.requests


class UsageRollup(_Sums):
    """A UTC day's sums. They are kept when the events are dropped."""

    class Meta:
        constraints = [
            models.UniqueConstraint(
                # Tenant first: a report reads one tenant's range of days.
                fields=["tenant", "day", *_Sums.DIMENSIONS[2:]],
                name="usage_rollup_once",
            )
        ]


class UsageHour(_Sums):
    """A UTC hour's sums, for reports by the hour and in other time zones than UTC."""

    hour = models.SmallIntegerField(help_text="UTC hour of the day.")

    DIMENSIONS: ClassVar[tuple[str, ...]] = (*_Sums.DIMENSIONS, "hour")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "day", "hour", *_Sums.DIMENSIONS[2:]], name="usage_hour_once"
            )
        ]


class AdapterHour(models.Model):
    """A UTC hour's sums of one adapter at one copy, by outcome: for monitoring, kept for weeks."""

    day = models.DateField()
    hour = models.SmallIntegerField(help_text="UTC hour of the day.")
    tenant = models.CharField(max_length=NAME)
    adapter = models.CharField(max_length=NAME, help_text="Name, without the version.")
    endpoint = models.CharField(max_length=NAME, help_text="Copy that answered.")
    status = models.CharField(max_length=20)
    error_code = models.CharField(max_length=NAME)
    requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()

    DIMENSIONS: ClassVar[tuple[str, ...]] = (
        "day",
        "hour",
        "tenant",
        "adapter",
        "endpoint",
        "status",
        "error_code",
    )
    SUMS: ClassVar[tuple[str, ...]] = ("requests", *_Sums.SUMS[1:4])

    class Meta:
        constraints = [
            models.UniqueConstraint(
                # Tenant and adapter first: pages read one adapter's range of days.
                fields=["tenant", "adapter", "day", "hour", "endpoint", "status", "error_code"],
                name="adapter_hour_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.hour}:00 {self.tenant} {self.adapter}"


class LatencyHour(models.Model):
    """A bucket of a UTC hour's latency histogram of one adapter at one copy; see `metering.histogram`."""

    class Metric(models.TextChoices):
        TTFT = "ttft"
        ITL = "itl"

    day = models.DateField()
    hour = models.SmallIntegerField(help_text="UTC hour of the day.")
    tenant = models.CharField(max_length=NAME)
    adapter = models.CharField(max_length=NAME, help_text="Name, without the version.")
    endpoint = models.CharField(max_length=NAME, help_text="Copy that answered.")
    metric = models.CharField(max_length=4, choices=Metric.choices)
    bucket = models.SmallIntegerField()
    requests = models.BigIntegerField()

    DIMENSIONS: ClassVar[tuple[str, ...]] = (
        "day",
        "hour",
        "tenant",
        "adapter",
        "endpoint",
        "metric",
        "bucket",
    )
    SUMS: ClassVar[tuple[str, ...]] = ("requests",)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "adapter", "day", "hour", "endpoint", "metric", "bucket"],
                name="latency_hour_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.hour}:00 {self.tenant} {self.adapter} {self.metric}"


class PendingLatencies(models.Model):
    """Latencies of one batch of events that are not yet in `LatencyHour`: rows are added, and soon removed.

    Empty on SQLite, where ingestion writes `LatencyHour` itself.
    """

    day = models.DateField()
    hour = models.SmallIntegerField(help_text="UTC hour of the day.")
    tenant = models.CharField(max_length=NAME)
    adapter = models.CharField(max_length=NAME, help_text="Name, without the version.")
    endpoint = models.CharField(max_length=NAME, help_text="Copy that answered.")
    ttft = models.TextField(help_text="Bucket of each event that has one, separated by commas.")
    itl = models.TextField(help_text="Likewise.")

    def __str__(self) -> str:
        return f"{self.day} {self.hour}:00 {self.tenant} {self.adapter}"


class DeadUsageEvent(models.Model):
    """A usage event that could not be counted, kept with the reason so that no usage is lost."""

    stream_id = models.CharField(max_length=50, unique=True)
    tenant = models.CharField(
        max_length=NAME,
        blank=True,
        default="",
        db_default="",
        help_text="Tenant named in the event; '' if unreadable.",
    )
    payload = models.TextField()
    reason = models.TextField()
    received_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.stream_id


class UsageSource(models.Model):
    """Allows a service account's keys with scope `usage:write` to report beyond their own project."""

    service_account = models.OneToOneField(ServiceAccount, models.CASCADE, related_name="usage_source")
    tenants = models.JSONField(
        null=True, blank=True, help_text="List of tenants, with all their projects; null for all tenants."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return str(self.service_account)


class HostingKind(models.TextChoices):
    """Kind of hosted resource, and the unit of its `quantity`."""

    COPY = "copy", _("copies of a base model that gateways may call")
    GPU = "gpu", _("accelerators that a deployment holds")
    INSTANCE = "instance", _("machines of an endpoint")
    ADAPTER = "adapter", _("adapter versions, in a tier")
    STORAGE = "storage", _("bytes of adapters' files")
    OPTIMIZATION = "optimization", _("machines of an optimization job")


class _Hosted(models.Model):
    """Columns that hosting time is summed by. Names, not keys: they outlive their objects."""

    kind = models.CharField(max_length=12, choices=HostingKind.choices)
    tenant = models.CharField(max_length=NAME, blank=True, help_text="Tenant id; '' for the operator.")
    base_model = models.CharField(max_length=NAME, blank=True)
    adapter = models.CharField(max_length=NAME, blank=True, help_text="Engine name.")
    deployment = models.CharField(max_length=NAME, blank=True)
    tier = models.CharField(max_length=10, blank=True, help_text="For an adapter: `placed` or `stored`.")
    instance_type = models.CharField(max_length=40, blank=True)

    DIMENSIONS: ClassVar[tuple[str, ...]] = (
        "kind",
        "tenant",
        "base_model",
        "adapter",
        "deployment",
        "tier",
        "instance_type",
    )

    class Meta:
        abstract = True


class HostingSpan(_Hosted):
    """Time in which a resource was hosted. Its seconds up to `counted_to` are in the hourly sums."""

    subject = models.CharField(
        max_length=NAME, help_text="Id within its kind; at most one is open at a time."
    )
    quantity = models.BigIntegerField()
    started_at = models.BigIntegerField(help_text="Unix seconds.")
    ended_at = models.BigIntegerField(null=True, blank=True, help_text="Null while it exists.")
    counted_to = models.BigIntegerField(help_text="Unix seconds.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "subject"], condition=models.Q(ended_at=None), name="hosting_span_open_once"
            ),
            models.CheckConstraint(
                condition=models.Q(counted_to__gte=models.F("started_at")), name="hosting_span_counted"
            ),
        ]
        indexes = [
            models.Index(
                fields=["counted_to"],
                condition=models.Q(ended_at=None) | models.Q(counted_to__lt=models.F("ended_at")),
                name="hosting_span_uncounted",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}"


class HostingHour(_Hosted):
    """A UTC hour's quantity times seconds, over all spans with equal other columns."""

    day = models.DateField()
    hour = models.SmallIntegerField(help_text="UTC hour of the day.")
    quantity_seconds = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "day", "hour", "kind", *_Hosted.DIMENSIONS[2:]], name="hosting_hour_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.hour}:00 {self.kind} {self.tenant}"


class HostingObservation(models.Model):
    """Time of the last observation of hosted resources. One row."""

    at = models.BigIntegerField(help_text="Unix seconds.")

    def __str__(self) -> str:
        return str(self.at)

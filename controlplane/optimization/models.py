"""Optimization jobs, comparisons, SageMaker assessments, and their prompt sets and artifacts."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from contracts.recipes.bundled_prompts import BundledPrompts, bundled_prompts
from controlplane.catalog.models import BaseModel, Variant
from controlplane.deployments.models import Target


class Status(models.TextChoices):
    QUEUED = "queued", _("Queued")
    WAITING = "waiting", _("waiting for room")
    RUNNING = "running", _("Running")
    CANCELLING = "cancelling", _("Cancelling")
    DONE = "done", _("Done")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")


OPEN = (Status.QUEUED, Status.WAITING, Status.RUNNING, Status.CANCELLING)
"""Statuses of works that may still change."""


class Machine(models.TextChoices):
    """Kind of machine; decides the Celery queue."""

    CPU = "cpu"
    GPU = "gpu"
    SAGEMAKER = "aws", "SageMaker"


class PromptSet(models.Model):
    """A JSONL file of calibration texts or of a comparison's prompts, keyed by its content's digest."""

    sha256 = models.CharField(primary_key=True, max_length=64)
    name = models.CharField(max_length=100)
    lines = models.PositiveIntegerField()
    size = models.PositiveIntegerField(help_text="Size in bytes.")
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "sha256")

    def __str__(self) -> str:
        return self.name

    @property
    def bundled(self) -> BundledPrompts | None:
        """The set that comes with Graftwork and has this content; None for an uploaded one."""
        return bundled_prompts(self.sha256)


class Artifact(models.Model):
    """Content-addressed files in the artifact store; the row exists before the first file is stored."""

    class State(models.TextChoices):
        STORING = "storing"
        STORED = "stored"
        REMOVING = "removing"

    sha256 = models.CharField(primary_key=True, max_length=64, help_text="catalog.digests.checkpoint_digest")
    state = models.CharField(max_length=10, choices=State.choices, default=State.STORING)
    uri = models.CharField(max_length=1000)
    size = models.BigIntegerField(help_text="Size of all files in bytes.")
    files = models.JSONField(help_text="SHA-256 by path within the folder.")
    target = models.ForeignKey(
        Target,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="artifacts",
        help_text="Target whose store has the files; null for the artifact store.",
    )
    needed_at = models.DateTimeField(default=timezone.now, help_text="Time of the last use.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "sha256")

    def __str__(self) -> str:
        return self.uri


class Work(models.Model):
    """A long-running task of a subprocess; the process with the lease runs it, see `claims`."""

    base_model = models.ForeignKey(BaseModel, models.PROTECT, related_name="%(class)ss")
    prompts = models.ForeignKey(PromptSet, models.PROTECT, null=True, blank=True, related_name="%(class)ss")
    machine = models.CharField(max_length=4, choices=Machine.choices)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.QUEUED)
    error_code = models.CharField(max_length=40, blank=True)
    reason = models.TextField(blank=True, help_text="Pending condition, or reason of the end.")
    cancel_asked_at = models.DateTimeField(null=True, blank=True)

    phase = models.CharField(max_length=60, blank=True)
    percent = models.FloatField(default=0)
    eta_seconds = models.FloatField(null=True, blank=True)
    log_tail = models.TextField(blank=True)
    progress_at = models.DateTimeField(null=True, blank=True)
    result = models.JSONField(null=True, blank=True, help_text="Result of the subprocess.")

    attempts = models.PositiveSmallIntegerField(default=0)
    lost_attempts = models.PositiveSmallIntegerField(
        default=0, help_text="Consecutive attempts whose process vanished."
    )
    next_at = models.DateTimeField(
        default=timezone.now, db_index=True, help_text="Time of the next enqueueing."
    )
    host = models.CharField(max_length=255, blank=True)
    lease_owner = models.CharField(max_length=64, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)

    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    KIND: ClassVar[str]

    class Meta:
        abstract = True

    @property
    def is_open(self) -> bool:
        """Return True while the work may still change."""
        return self.status in OPEN

    @property
    def seconds(self) -> float | None:
        """Seconds from the first attempt to the end, or to now."""
        if self.started_at is None:
            return None
        return ((self.ended_at or timezone.now()) - self.started_at).total_seconds()


class OptimizationJob(Work):
    """A recipe applied to a base model's checkpoint; at most one per identity that has not failed."""

    KIND = "job"

    checkpoint_sha256 = models.CharField(max_length=64, help_text="Checkpoint of the base at the request.")
    recipe = models.JSONField(help_text="contracts.recipes.recipe with defaults filled in.")
    recipe_sha256 = models.CharField(max_length=64)
    engine = models.CharField(max_length=10)
    target = models.ForeignKey(
        Target,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="optimizations",
        help_text="sagemaker: target whose account runs the job.",
    )
    remote = models.JSONField(
        default=dict,
        blank=True,
        db_default=models.Value({}, models.JSONField()),
        help_text="sagemaker: requested `options`, and `told`, the observed job.",
    )
    adapter = models.JSONField(
        default=dict,
        blank=True,
        db_default=models.Value({}, models.JSONField()),
        help_text="AdapterRef of the adapter to merge into the weights; {} for none.",
    )
    identity = models.CharField(
        max_length=64, help_text="Digest of checkpoint, recipe, calibration texts and adapter."
    )
    variant_name = models.CharField(max_length=63, help_text="Name of the result in the catalogue.")
    variant = models.OneToOneField(
        Variant, models.SET_NULL, null=True, blank=True, related_name="optimization"
    )
    artifact = models.ForeignKey(Artifact, models.PROTECT, null=True, blank=True, related_name="jobs")
    lineage = models.JSONField(default=dict, blank=True, help_text="Lineage from the base to the variant.")

    class Meta:
        ordering = ("-pk",)
        constraints = [
            models.UniqueConstraint(
                fields=["identity"],
                condition=~models.Q(status__in=["failed", "cancelled"]),
                name="optimization_job_once",
            )
        ]

    def __str__(self) -> str:
        return f"optimization {self.pk}"


class ComparisonRun(Work):
    """A measurement of several arms (variants) of one base model in one run."""

    KIND = "comparison"

    name = models.CharField(max_length=100, blank=True)
    arms = models.JSONField(
        help_text="name, and variant ('' for the base's own checkpoint); the first is the original."
    )
    settings = models.JSONField(default=dict, blank=True, help_text="Settings: load, quality, price, seed.")
    texts = models.ForeignKey(
        PromptSet,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="comparisons_by_texts",
        help_text="Held-out texts for perplexity.",
    )
    identity = models.CharField(max_length=64)

    class Meta:
        ordering = ("-pk",)
        constraints = [
            models.UniqueConstraint(
                fields=["identity"],
                condition=models.Q(status__in=["queued", "waiting", "running", "cancelling"]),
                name="comparison_run_once_at_a_time",
            )
        ]

    def __str__(self) -> str:
        return f"comparison {self.pk}"


class Assessment(Work):
    """A benchmark or recommendation job of SageMaker's AI service, polled until it has ended."""

    KIND = "assessment"

    class Subject(models.TextChoices):
        BENCHMARK = "benchmark", _("of a deployment's endpoint")
        RECOMMENDATION = "recommendation", _("of instance types and settings for a base")

    class Metric(models.TextChoices):
        """Metric that a recommendation optimizes, under SageMaker's names."""

        TTFT = "ttft-ms"
        THROUGHPUT = "throughput"
        COST = "cost"

    subject = models.CharField(max_length=14, choices=Subject.choices)
    name = models.CharField(max_length=100, blank=True)
    target = models.ForeignKey(Target, models.SET_NULL, null=True, blank=True, related_name="assessments")
    remote = models.JSONField(default=dict, help_text="Requested `options`, and `told`, the observed job.")

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.subject} {self.pk}"


class WorkEvent(models.Model):
    """An entry of a work's history. Rows are append-only."""

    assessment = models.ForeignKey(Assessment, models.CASCADE, null=True, related_name="events")
    job = models.ForeignKey(OptimizationJob, models.CASCADE, null=True, related_name="events")
    comparison = models.ForeignKey(ComparisonRun, models.CASCADE, null=True, related_name="events")
    event = models.CharField(max_length=40)
    detail = models.TextField(blank=True)
    actor = models.CharField(max_length=200, blank=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.event} {self.detail[:60]}"


class Attempt(models.Model):
    """The time that a machine spent on a work. It holds names, not keys: metered time outlives the work."""

    subject = models.CharField(
        max_length=100, unique=True, help_text="Attempt, such as job-12.1 for the first one."
    )
    base_model = models.CharField(max_length=63)
    machine = models.CharField(max_length=4, choices=Machine.choices)
    instance_type = models.CharField(max_length=40, blank=True)
    host = models.CharField(max_length=255)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField(help_text="Time of the last heartbeat.")
    ended_at = models.DateTimeField(null=True, blank=True)
    metered = models.BooleanField(default=False, help_text="Whether its time is metered completely.")

    class Meta:
        ordering = ("-pk",)
        indexes = [
            models.Index(fields=["subject"], condition=models.Q(metered=False), name="attempt_unmetered")
        ]

    def __str__(self) -> str:
        return self.subject

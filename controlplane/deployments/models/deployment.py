"""Desired and observed state of deployments, and their journal."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models.target import Target


class Deployment(models.Model):
    """A base model to run in a target, with its desired and observed state.

    Operators change the desired state, from `target` to `adapter_scope`; `generation` counts their changes
    and retries. The reconciler writes the other fields while it holds the lease.
    """

    class Hosting(models.TextChoices):
        """How adapters reach the copies."""

        COMPONENTS = "components", _("one inference component per adapter")
        PRELOADED = "preloaded", _("one archive for all adapters")
        FUSED = "fused", _("merged into the weights")
        ON_DEMAND = "on_demand", _("loaded on demand")
        API = "api", _("loaded through the server's API")
        ENDPOINT = "endpoint", _("an endpoint without inference components")

    PLACING = (Hosting.COMPONENTS, Hosting.PRELOADED, Hosting.API)
    """Hosting modes in which an adapter must be placed ahead of requests."""

    class Scope(models.TextChoices):
        """Versions of tenants' adapters that are placed."""

        ALL = "all", _("all ready versions")
        NAMED = "named", _("versions that a name or alias refers to")

    class Status(models.TextChoices):
        PENDING = "pending", _("Pending")
        WORKING = "working", _("Working")
        SERVING = "serving", _("Serving")
        DEGRADED = "degraded", _("Degraded")
        FAILED = "failed", _("Failed")
        REMOVING = "removing", _("Removing")
        REMOVED = "removed", _("Removed")

    name = models.CharField(max_length=36)
    target = models.ForeignKey(Target, models.PROTECT, related_name="deployments")
    base_model = models.ForeignKey(BaseModel, models.PROTECT, related_name="deployments")
    hosting = models.CharField(max_length=20, choices=Hosting.choices)
    endpoint = models.CharField(max_length=63, blank=True, help_text="sagemaker: name of a shared endpoint.")
    min_copies = models.PositiveSmallIntegerField(default=1)
    max_copies = models.PositiveSmallIntegerField(default=1)
    instance_type = models.CharField(max_length=40, blank=True)
    fallback_instance_types = models.JSONField(
        default=list,
        blank=True,
        db_default=models.Value([], models.JSONField()),
        help_text="sagemaker: further instance types, in the order in which they are tried.",
    )
    min_instances = models.PositiveSmallIntegerField(default=1)
    max_instances = models.PositiveSmallIntegerField(default=1)
    variant = models.CharField(
        max_length=63,
        blank=True,
        default="",
        db_default="",
        help_text="Variant of the base model; '' for its own checkpoint.",
    )
    merged_adapter = models.CharField(
        max_length=160,
        blank=True,
        default="",
        db_default="",
        help_text="Engine name of the adapter that the variant has merged in; '' for none.",
    )
    urls = models.JSONField(
        default=list,
        blank=True,
        db_default=models.Value([], models.JSONField()),
        help_text="openai_http: server URLs; [] for the target's.",
    )
    image = models.CharField(
        max_length=400, blank=True, help_text="Name from the image table, or an address."
    )
    image_family = models.CharField(max_length=10, blank=True)
    options = models.JSONField(
        default=dict, blank=True, help_text="LmiOptions that differ from the defaults."
    )
    environment = models.JSONField(default=dict, blank=True, help_text="Additional environment variables.")
    compute = models.JSONField(
        default=dict, blank=True, help_text="accelerators, cpus, memory_mb and their reasons."
    )
    adapter_scope = models.CharField(max_length=10, choices=Scope.choices, default=Scope.ALL)
    generation = models.PositiveIntegerField(default=1)
    removal_asked_at = models.DateTimeField(null=True, blank=True)
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    reason = models.TextField(blank=True, help_text="Pending condition or recommended action.")
    resources = models.JSONField(
        default=list, blank=True, help_text="Last observed: kind, name, state, reason."
    )
    observed_generation = models.PositiveIntegerField(default=0, help_text="Generation in force.")
    observed_at = models.DateTimeField(null=True, blank=True)
    routes_version = models.BigIntegerField(default=0, help_text="Route table version of the placements.")
    failures = models.PositiveIntegerField(default=0, help_text="Consecutive failed runs.")
    next_at = models.DateTimeField(default=timezone.now, db_index=True, help_text="Time of the next run.")
    leaving = models.JSONField(
        default=dict, blank=True, help_text="URL that left the routes -> end of its last request."
    )
    retry_at = models.DateTimeField(
        null=True, blank=True, help_text="When failed resources are recreated; null for none."
    )
    drained_at = models.DateTimeField(null=True, blank=True, help_text="When the removal may continue.")
    removed_at = models.DateTimeField(null=True, blank=True)
    lease_owner = models.CharField(max_length=64, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("name", "pk")
        constraints = [
            models.UniqueConstraint(
                fields=["name"], condition=models.Q(removed_at=None), name="deployment_once"
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_wanted(self) -> bool:
        """True unless its removal was requested."""
        return self.removal_asked_at is None

    @property
    def has_computed_requirements(self) -> bool:
        """True if `compute` was computed, not stated: only then it has a list of reasons."""
        return isinstance(self.compute.get("reasons"), list)

    @property
    def is_settled(self) -> bool:
        """True if the status is final for now, so that a page stops polling."""
        final = (self.Status.FAILED, self.Status.REMOVED)
        return self.status in final or (self.status == self.Status.SERVING and not self.reason)


class DeploymentStep(models.Model):
    """One action, refusal or observed change. Rows are never changed; the oldest are pruned."""

    class Outcome(models.TextChoices):
        DONE = "done"
        FAILED = "failed"
        NOTED = "noted"

    deployment = models.ForeignKey(Deployment, models.CASCADE, related_name="steps")
    action = models.CharField(max_length=60)
    resource = models.CharField(max_length=200, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, default=Outcome.DONE)
    cause = models.TextField(blank=True, help_text="Reason for the step, or for its failure.")
    actor = models.CharField(max_length=200, blank=True)
    seconds = models.FloatField(null=True, blank=True, help_text="Duration of the call.")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.deployment}: {self.action} {self.resource}"

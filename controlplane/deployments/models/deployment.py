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

        COMPONENTS = "components", _("an inference component each")
        PRELOADED = "preloaded", _("all in one archive")
        FUSED = "fused", _("none: merged into the weights")
        ON_DEMAND = "on_demand", _("by the request that needs one")
        API = "api", _("by the server's own routes")

    PLACING = (Hosting.COMPONENTS, Hosting.PRELOADED, Hosting.API)
    """Hosting modes in which an adapter must be placed ahead of requests."""

    class Scope(models.TextChoices):
        """Versions of tenants' adapters that are placed."""

        ALL = "all", _("every ready version")
        NAMED = "named", _("those that a name or alias means")

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
    endpoint = models.CharField(max_length=63, blank=True, help_text="sagemaker: bases of one name share it.")
    min_copies = models.PositiveSmallIntegerField(default=1)
    max_copies = models.PositiveSmallIntegerField(default=1)
    instance_type = models.CharField(max_length=40, blank=True)
    min_instances = models.PositiveSmallIntegerField(default=1)
    max_instances = models.PositiveSmallIntegerField(default=1)
    variant = models.CharField(
        max_length=63,
        blank=True,
        default="",
        db_default="",
        help_text="Of the base model's; '' for its own checkpoint.",
    )
    urls = models.JSONField(
        default=list, blank=True, db_default=models.Value([], models.JSONField()),
        help_text="openai_http: the servers; [] for the target's.",
    )  # fmt: skip
    image = models.CharField(max_length=400, blank=True, help_text="A name of the table, or an address.")
    image_family = models.CharField(max_length=10, blank=True)
    options = models.JSONField(default=dict, blank=True, help_text="LmiOptions, those that were given.")
    environment = models.JSONField(default=dict, blank=True, help_text="Added to the container's.")
    compute = models.JSONField(
        default=dict, blank=True, help_text="accelerators, cpus, memory_mb, and reasons why."
    )
    adapter_scope = models.CharField(max_length=10, choices=Scope.choices, default=Scope.ALL)
    generation = models.PositiveIntegerField(default=1)
    removal_asked_at = models.DateTimeField(null=True, blank=True)
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    reason = models.TextField(blank=True, help_text="What it waits for, or what to do.")
    resources = models.JSONField(
        default=list, blank=True, help_text="As seen last: kind, name, state, reason."
    )
    observed_generation = models.PositiveIntegerField(default=0, help_text="Whose desired state is in force.")
    observed_at = models.DateTimeField(null=True, blank=True)
    routes_version = models.BigIntegerField(default=0, help_text="Of the table that placements are from.")
    failures = models.PositiveIntegerField(default=0, help_text="Looks in a row that failed.")
    next_at = models.DateTimeField(default=timezone.now, db_index=True, help_text="When to look again.")
    leaving = models.JSONField(
        default=dict,
        blank=True,
        help_text="URL of a place that left the routes -> when its last request is over.",
    )
    retry_at = models.DateTimeField(
        null=True, blank=True, help_text="What failed is made anew from then on; null while nothing has."
    )
    drained_at = models.DateTimeField(null=True, blank=True, help_text="Removal may go on from then on.")
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
    cause = models.TextField(blank=True, help_text="Why it was done, or why it failed.")
    actor = models.CharField(max_length=200, blank=True)
    seconds = models.FloatField(null=True, blank=True, help_text="That the call took.")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.deployment}: {self.action} {self.resource}"

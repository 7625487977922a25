"""Models of deployments: targets, desired and observed state, and serving copies."""

from __future__ import annotations

import secrets

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from controlplane.catalog.models import BaseModel
from controlplane.deployments.phases.models import ScaleUp as ScaleUp
from controlplane.deployments.placement.models import AdapterRule as AdapterRule
from controlplane.deployments.rollouts.models import DeploymentRollout as DeploymentRollout
from controlplane.deployments.scaling.models import Scaling as Scaling


def _new_owner() -> str:
    return secrets.token_hex(6)


class Target(models.Model):
    """A place where deployments run. It stores no secrets: processes use their own credentials."""

    class Kind(models.TextChoices):
        SAGEMAKER = "sagemaker"
        LOCAL = "local"
        OPENAI_HTTP = "openai_http"

    name = models.CharField(max_length=40, unique=True)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    region = models.CharField(max_length=30, blank=True)
    endpoint_url = models.CharField(
        max_length=500, blank=True, help_text="sagemaker: instead of AWS's, for all its services."
    )
    role_arn = models.CharField(
        max_length=2048, blank=True, help_text="sagemaker: what endpoints run as (ExecutionRoleArn)."
    )
    assume_role_arn = models.CharField(
        max_length=2048, blank=True, help_text="sagemaker: assumed for every call; '' for the process's own."
    )
    store = models.CharField(
        max_length=500, blank=True, help_text="sagemaker: s3://bucket/prefix for archives that it loads."
    )
    owner = models.CharField(
        max_length=12, default=_new_owner, db_default="", editable=False,
        help_text="sagemaker: the tag, and the store's folder, of what this installation made for it.",
    )  # fmt: skip
    host = models.CharField(max_length=255, blank=True, help_text="local: the machine's host name.")
    address = models.CharField(max_length=255, blank=True, help_text="local: what gateways call it by.")
    urls = models.JSONField(default=list, blank=True, help_text="openai_http: base URLs without /v1.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


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


class Placement(models.Model):
    """One adapter version that the route table wants on a deployment, and its last observed status."""

    class Status(models.TextChoices):
        WAITING = "waiting"
        LOADING = "loading"
        READY = "ready"
        FAILED = "failed"
        LEAVING = "leaving"

    deployment = models.ForeignKey(Deployment, models.CASCADE, related_name="placements")
    engine_name = models.CharField(max_length=200)
    uri = models.CharField(max_length=1000)
    sha256 = models.CharField(max_length=64)
    rank = models.PositiveIntegerField()
    resource = models.CharField(max_length=200, blank=True, help_text="What the provider calls it.")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.WAITING)
    reason = models.TextField(blank=True)
    leaves_at = models.DateTimeField(null=True, blank=True, help_text="No route leads there any more.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("engine_name",)
        constraints = [models.UniqueConstraint(fields=["deployment", "engine_name"], name="placement_once")]

    def __str__(self) -> str:
        return f"{self.engine_name} on {self.deployment}"


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


class Copy(models.Model):
    """One server that serves a base model. Usage events carry its id as `endpoint`."""

    class Kind(models.TextChoices):
        WORKER = "worker"
        OPENAI_HTTP = "openai_http"
        SAGEMAKER = "sagemaker"

    class AdapterNaming(models.TextChoices):
        """How requests name the adapter to a SageMaker copy; see `SageMakerTarget.adapters`."""

        COMPONENTS = "components"
        REFERENCE = "reference"
        NAME = "name"

    class Api(models.TextChoices):
        """Interface of a SageMaker endpoint that gateways call."""

        INVOCATIONS = "invocations"
        OPENAI = "openai"

    id = models.CharField(primary_key=True, max_length=40)
    base_model = models.ForeignKey(BaseModel, models.PROTECT, related_name="copies")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    url = models.CharField(
        max_length=500, blank=True, help_text="Base URL without /v1; of SageMaker empty for the region's own."
    )
    loads_adapters = models.BooleanField(
        default=False, help_text="openai_http: vLLM may be told to load an adapter that it does not know."
    )
    region = models.CharField(max_length=30, blank=True)
    endpoint = models.CharField(max_length=63, blank=True)
    component = models.CharField(
        max_length=63, blank=True, help_text="Inference component of the base model, if there is one."
    )
    adapter_naming = models.CharField(
        max_length=20, choices=AdapterNaming.choices, default=AdapterNaming.COMPONENTS
    )
    api = models.CharField(max_length=20, choices=Api.choices, default=Api.INVOCATIONS)
    deployment = models.ForeignKey(
        Deployment, models.SET_NULL, null=True, blank=True, related_name="copies", help_text="Whose it is."
    )
    canary = models.CharField(
        max_length=40, blank=True, default="", db_default="",
        help_text="Rollout that gives this copy and its like an exact share of callers; '' for none.",
    )  # fmt: skip
    percent = models.PositiveSmallIntegerField(default=0, db_default=0, help_text="That share.")
    silent_since = models.DateTimeField(
        null=True, blank=True, help_text="Its deployment's looks have had no answer in time since."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("created_at", "id")
        constraints = [
            models.UniqueConstraint(
                fields=["base_model", "url", "region", "endpoint", "component"], name="copy_once"
            )
        ]

    def __str__(self) -> str:
        return self.id

"""Adapters on deployments: those that routes want, and operators' rules for single ones."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from controlplane.deployments.models.deployment import Deployment


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
    resource = models.CharField(max_length=200, blank=True, help_text="Name at the provider.")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.WAITING)
    reason = models.TextField(blank=True)
    leaves_at = models.DateTimeField(
        null=True, blank=True, help_text="When the adapter may be removed; it has no route."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("engine_name",)
        constraints = [models.UniqueConstraint(fields=["deployment", "engine_name"], name="placement_once")]

    def __str__(self) -> str:
        return f"{self.engine_name} on {self.deployment}"


class AdapterRule(models.Model):
    """Pins and moves of one adapter version.

    Operators set `copies`, `on`, `away` and `leaving`; `generation` counts their changes. the placement
    reconciler replaces removed copies and writes the other fields.

    Attributes:
        ref: `AdapterRef.to_dict()`, which identifies the adapter to copies after its route is removed.
        on: ids of copies that should hold it; the placement reconciler adds others while they are fewer
            than `copies`.
        ready: ids of copies that have it pinned in memory.
        away: ids of copies that get its requests only if no other copy takes them.
        leaving: id of a copy that it is leaving -> when it may be evicted there; "" until it is ready on its
            new copy.
    """

    class Status(models.TextChoices):
        WAITING = "waiting", _("waiting for a copy")
        LOADING = "loading", _("Loading")
        READY = "ready", _("Ready")
        MOVING = "moving", _("Moving")
        LEAVING = "leaving", _("Leaving")
        FAILED = "failed", _("Failed")

    deployment = models.ForeignKey("deployments.Deployment", models.CASCADE, related_name="adapter_rules")
    engine_name = models.CharField(max_length=200)
    ref = models.JSONField()
    copies = models.PositiveSmallIntegerField(
        default=0, help_text="Number of copies that pin it; 0 for none."
    )
    on = models.JSONField(default=list, blank=True)
    away = models.JSONField(default=list, blank=True)
    leaving = models.JSONField(default=dict, blank=True)
    ready = models.JSONField(default=list, blank=True)
    generation = models.PositiveIntegerField(default=1)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.LOADING)
    reason = models.TextField(blank=True, help_text="Pending condition or recommended action.")
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("engine_name",)
        constraints = [
            models.UniqueConstraint(fields=["deployment", "engine_name"], name="adapter_rule_once")
        ]

    def __str__(self) -> str:
        return f"{self.engine_name} on deployment {self.deployment_id}"

    @property
    def is_over(self) -> bool:
        """True if the rule has no effect left; it is deleted once no copy holds a pin."""
        return not (self.copies or self.away or self.leaving)

    @property
    def homes(self) -> list[str]:
        """Copies that gateways prefer: ready ones, including those it leaves until it is ready elsewhere."""
        candidates = {*self.on, *(copy for copy, at in self.leaving.items() if not at)}
        return [copy for copy in self.ready if copy in candidates]

    @property
    def avoided(self) -> list[str]:
        """Copies that gateways avoid: excluded ones, and those that it is leaving."""
        return sorted({*self.away, *(copy for copy, at in self.leaving.items() if at)})

"""Adapters that routes want on deployments."""

from __future__ import annotations

from django.db import models

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

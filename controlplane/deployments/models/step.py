"""Journal of deployments."""

from __future__ import annotations

from django.db import models

from controlplane.deployments.models.deployment import Deployment


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

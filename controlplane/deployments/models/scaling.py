"""Scaling policies of deployments, and the state of our own controller."""

from __future__ import annotations

from django.db import models


class Scaling(models.Model):
    """Scaling policy of one deployment.

    The row stays after the policy is deleted, so that resources registered for it elsewhere are removed.

    Attributes:
        copies: local targets: number of copies that the controller wants.
        state: `ScaleState.to_json()` and, under `window`, the earlier readings.
        seen: the last reading, for display: load, held, whole.
        lease_until: until then one process takes a reading and no other does; null without one.
    """

    deployment = models.OneToOneField("deployments.Deployment", models.CASCADE, related_name="scaling")
    policy = models.JSONField(null=True, blank=True, help_text="ScalingPolicy.to_json(); null: off.")
    copies = models.PositiveSmallIntegerField(default=0)
    state = models.JSONField(default=dict, blank=True)
    seen = models.JSONField(default=dict, blank=True)
    evaluated_at = models.DateTimeField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("deployment_id",)

    def __str__(self) -> str:
        return f"scaling of deployment {self.deployment_id}"

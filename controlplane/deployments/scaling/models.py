"""A deployment's scaling policy, and what our own controller keeps of it."""

from __future__ import annotations

from django.db import models


class Scaling(models.Model):
    """The policy of one deployment. A row whose policy was taken away stays: what was registered for it
    elsewhere has to be found and removed.

    Attributes:
        copies: of a local target, what the controller wants.
        state: `ScaleState.to_json()` and, under `window`, what counts requests a minute.
        seen: the last reading, for people: load, held, whole.
        lease_until: a process takes a reading, and nobody else does until then; null: none does.
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

"""Rollouts of deployments: from one state of the copies to another, and back after an alarm."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _

ROLLED: Final = ("variant", "urls", "image", "image_family", "options", "environment", "compute")
"""Fields of a deployment that define a copy; changing them replaces copies."""


class DeploymentRollout(models.Model):
    """One change of a deployment's copies.

    The deployment's own fields hold the state that it moves to: `after` or, while it rolls back, `before`.
    """

    class Strategy(models.TextChoices):
        ROLLING = "rolling", _("batches of copies")
        BLUE_GREEN = "blue_green", _("a complete new set, then a switch")
        CANARY = "canary", _("exact shares of callers for a few new copies, then a switch")

    class Status(models.TextChoices):
        RUNNING = "running", _("Running")
        PAUSED = "paused", _("Paused")
        ROLLING_BACK = "rolling_back", _("Rolling Back")
        COMPLETED = "completed", _("Completed")
        ROLLED_BACK = "rolled_back", _("Rolled Back")
        ABORTED = "aborted", _("Aborted")

    ACTIVE = (Status.RUNNING, Status.PAUSED, Status.ROLLING_BACK)

    deployment = models.ForeignKey("deployments.Deployment", models.CASCADE, related_name="rollouts")
    strategy = models.CharField(max_length=12, choices=Strategy.choices)
    before = models.JSONField(help_text="Previous values of ROLLED.")
    after = models.JSONField(help_text="New values of ROLLED.")
    policy = models.JSONField(help_text="RolloutPolicy.")
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.RUNNING)
    step = models.PositiveSmallIntegerField(default=0, help_text="Number of completed steps.")
    ready_at = models.DateTimeField(null=True, help_text="When all copies of this step were ready.")
    turned_at = models.DateTimeField(help_text="Start of the rollout or rollback.")
    copies = models.JSONField(default=dict, help_text="Ids of copies that served: new, old.")
    verdict = models.CharField(
        max_length=5, blank=True, help_text="Verdict on usage at this step: worse, fine, wait."
    )
    judged_at = models.DateTimeField(null=True, help_text="Time of the last verdict.")
    figures = models.JSONField(null=True, help_text="Metrics of the last verdict.")
    reason = models.TextField(blank=True, help_text="Pending condition, or reason of the end.")
    aborted = models.BooleanField(default=False, help_text="An operator aborted the rollout.")
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-pk",)
        constraints = [
            models.UniqueConstraint(
                fields=["deployment"],
                condition=models.Q(status__in=["running", "paused", "rolling_back"]),
                name="deployment_rollout_one_active",
            )
        ]

    def __str__(self) -> str:
        return f"rollout {self.pk} of {self.deployment}"

    @property
    def is_tried_on_a_share(self) -> bool:
        """True if new copies get an exact share of callers at this step."""
        return self.strategy == self.Strategy.CANARY and 1 <= self.step <= len(self.policy["shares"])

    @property
    def is_active(self) -> bool:
        """True while it may still change copies."""
        return self.status in self.ACTIVE

"""Automatic canary rollouts: the plan, its progress, and each decision with its figures."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from controlplane.adapters.models import Adapter, AdapterVersion


class Rollout(models.Model):
    """The gradual rollout of a version to an alias's callers, which ends in promotion or rollback."""

    class Status(models.TextChoices):
        RUNNING = "running", _("Running")
        PAUSED = "paused", _("Paused")
        PROMOTED = "promoted", _("Promoted")
        ROLLED_BACK = "rolled_back", _("Rolled Back")
        ABORTED = "aborted", _("Aborted")
        SUPERSEDED = "superseded", _("Superseded")

    ACTIVE = (Status.RUNNING, Status.PAUSED)

    adapter = models.ForeignKey(Adapter, models.CASCADE, related_name="rollouts")
    alias = models.CharField(max_length=63)
    stable = models.ForeignKey(AdapterVersion, models.CASCADE, related_name="+")
    canary = models.ForeignKey(AdapterVersion, models.CASCADE, related_name="+")
    steps = models.JSONField(help_text="Increasing percentages of callers; promotion follows the last.")
    hold_seconds = models.PositiveIntegerField(help_text="Minimum duration of a step in seconds.")
    min_requests = models.PositiveIntegerField(help_text="Minimum requests of each arm at a step.")
    max_error_increase = models.FloatField(help_text="Allowed increase in the share of failed requests.")
    max_latency_ratio = models.FloatField(
        null=True, help_text="Multiple of the stable's 95th percentile that 5 % may exceed."
    )
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.RUNNING)
    step = models.PositiveSmallIntegerField(default=0, help_text="Index into `steps`.")
    step_started_at = models.DateTimeField(help_text="Time from which requests count.")
    change = models.BigIntegerField(
        help_text="Last change of the alias by the rollout; another change ends it."
    )
    figures = models.JSONField(null=True, help_text="Latest metrics of both arms.")
    looked_at = models.DateTimeField(null=True)
    reason = models.CharField(
        max_length=1000, blank=True, help_text="Pending condition, or reason of the end."
    )
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-pk",)
        constraints = [
            models.UniqueConstraint(
                fields=["adapter", "alias"],
                condition=models.Q(status__in=["running", "paused"]),
                name="rollout_one_active",
            )
        ]

    def __str__(self) -> str:
        return f"{self.adapter}@{self.alias} to v{self.canary.number}"

    @property
    def is_active(self) -> bool:
        """True while the rollout may still move the alias."""
        return self.status in self.ACTIVE

    @property
    def percent(self) -> int:
        """The canary's percentage of callers at the current step."""
        return int(self.steps[self.step])


class RolloutDecision(models.Model):
    """A decision with its actor and figures. Rows are append-only."""

    class Kind(models.TextChoices):
        START = "start", _("Start")
        ADVANCE = "advance", _("Advance")
        PROMOTE = "promote", _("Promote")
        ROLL_BACK = "roll_back", _("Roll Back")
        PAUSE = "pause", _("Pause")
        RESUME = "resume", _("Resume")
        ABORT = "abort", _("Abort")
        SUPERSEDE = "supersede", _("Supersede")

    rollout = models.ForeignKey(Rollout, models.CASCADE, related_name="decisions")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    percent = models.PositiveSmallIntegerField(help_text="The canary's share of callers after the decision.")
    figures = models.JSONField(null=True)
    reason = models.CharField(max_length=1000, blank=True)
    by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.rollout}: {self.kind}"

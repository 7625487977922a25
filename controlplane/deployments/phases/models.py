"""Scale-ups that happened, by phase."""

from __future__ import annotations

from django.db import models

from controlplane.deployments.phases.prediction import PHASES


class ScaleUp(models.Model):
    """More copies, from the first sign of the need to the last of them serving.

    Attributes:
        event: what the one who scaled calls it: of ours the time, of AWS the activity's id.
        began_at: the first sign; decided_at: when more were asked for; ended_at: null while it goes on.
        phases: seconds by phase; under `copy` what cannot be told apart, the machine among it unless
            `provision` stands beside it.
        image: of its copies; "" where they have none.
        machines: of a target that tells how many it has: `before` the growth, `most` of them since, and `at`
            which moment those were first seen; empty where the number before is not known.
        outcome: "" while it goes on; done, or overtaken by another change.
    """

    class Outcome(models.TextChoices):
        DONE = "done"
        OVERTAKEN = "overtaken"

    deployment = models.ForeignKey("deployments.Deployment", models.CASCADE, related_name="scale_ups")
    event = models.CharField(max_length=64)
    copies_before = models.PositiveSmallIntegerField()
    copies_after = models.PositiveSmallIntegerField()
    cause = models.TextField(blank=True)
    began_at = models.DateTimeField()
    decided_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    phases = models.JSONField(default=dict, blank=True)
    image = models.CharField(max_length=400, blank=True, default="", db_default="")
    machines = models.JSONField(default=dict, blank=True, db_default=models.Value({}, models.JSONField()))
    outcome = models.CharField(max_length=10, choices=Outcome.choices, blank=True)

    class Meta:
        ordering = ("-decided_at", "-pk")
        constraints = [models.UniqueConstraint(fields=["deployment", "event"], name="scale_up_once")]

    def __str__(self) -> str:
        return f"{self.copies_before} to {self.copies_after} copies of deployment {self.deployment_id}"

    @property
    def phases_in_order(self) -> dict[str, float]:
        """As they follow each other: PostgreSQL keeps no order of a JSON object's names."""
        return {name: self.phases[name] for name in (*PHASES, "copy") if name in self.phases}

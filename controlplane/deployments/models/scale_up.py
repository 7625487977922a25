"""Scale-ups that happened, by phase."""

from __future__ import annotations

from django.db import models

from controlplane.deployments.phase_names import PHASES


class ScaleUp(models.Model):
    """An increase in copies, from the first sign of demand until the last new copy serves.

    Attributes:
        event: id at the scaler: the time of our own decision, or the id of AWS's scaling activity.
        began_at: first sign of demand; decided_at: when more copies were requested; ended_at: null while in
            progress.
        phases: seconds by phase; `copy` sums phases that cannot be separated, the machine included unless
            `provision` is present.
        image: image of the copies; "" if they have none.
        machines: on targets that report instances: number `before` the scale-up, `most` since then, and `at`,
            when the latter was first observed. Empty if the number before is unknown.
        outcome: "" while in progress; done, or overtaken by another change.
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
        """Phases in time order; PostgreSQL does not preserve the order of a JSON object's keys."""
        return {name: self.phases[name] for name in (*PHASES, "copy") if name in self.phases}

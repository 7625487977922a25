"""Where people have placed single adapter versions on a deployment's copies."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class AdapterRule(models.Model):
    """One adapter version's pins and moves. What people asked for is `copies`, `on`, `away` and `leaving`;
    `generation` counts their changes. The keeper (`placement.keeper`) replaces copies that have gone, and
    writes the rest.

    Attributes:
        ref: `AdapterRef.to_dict()`, by which copies know it when no route does any more.
        on: ids of the copies that are to hold it; the keeper adds others while they are fewer than `copies`.
        ready: ids of those where it is pinned in memory.
        away: ids of copies that get its requests only while no other takes any.
        leaving: id of a copy that it is taken from -> when it may be let go there, "" until it is ready
            where it moves to.
    """

    class Status(models.TextChoices):
        WAITING = "waiting", _("waits for a copy")
        LOADING = "loading", _("Loading")
        READY = "ready", _("Ready")
        MOVING = "moving", _("Moving")
        LEAVING = "leaving", _("Leaving")
        FAILED = "failed", _("Failed")

    deployment = models.ForeignKey("deployments.Deployment", models.CASCADE, related_name="adapter_rules")
    engine_name = models.CharField(max_length=200)
    ref = models.JSONField()
    copies = models.PositiveSmallIntegerField(default=0, help_text="That it is pinned on; 0: on none.")
    on = models.JSONField(default=list, blank=True)
    away = models.JSONField(default=list, blank=True)
    leaving = models.JSONField(default=dict, blank=True)
    ready = models.JSONField(default=list, blank=True)
    generation = models.PositiveIntegerField(default=1)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.LOADING)
    reason = models.TextField(blank=True, help_text="What it waits for, or what to do.")
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
        """Whether nothing is asked for any more; the keeper forgets it when no copy holds a pin."""
        return not (self.copies or self.away or self.leaving)

    @property
    def homes(self) -> list[str]:
        """Copies that gateways prefer: those that hold it, until it is elsewhere also one that it leaves."""
        stays = {*self.on, *(copy for copy, at in self.leaving.items() if not at)}
        return [copy for copy in self.ready if copy in stays]

    @property
    def avoided(self) -> list[str]:
        """Copies that gateways pass over: those kept away from, and those that it is leaving."""
        return sorted({*self.away, *(copy for copy, at in self.leaving.items() if at)})

"""Notices of used budgets and prepaid balances."""

from __future__ import annotations

from django.db import models


class BudgetNotice(models.Model):
    """A share of a budget was reached in a period: notified once, by webhook and by mail."""

    tenant = models.CharField(max_length=63)
    scope = models.CharField(max_length=100, help_text="Scope id, as in the route table.")
    period = models.CharField(
        max_length=10,
        help_text="UTC: `2026-11` or `2026-11-21`; for a prepaid balance, the number of top-ups.",
    )
    percent = models.PositiveSmallIntegerField()
    budget_nano = models.BigIntegerField(
        help_text="The budget at that time; a changed budget is announced again."
    )
    spent_nano = models.BigIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)
    notify_at = models.DateTimeField(
        null=True, blank=True, help_text="When the mail is due. Null if none is due or it was sent."
    )
    notify_attempts = models.PositiveSmallIntegerField(default=0)
    notified = models.JSONField(
        null=True, blank=True, help_text="Ids of users who have received the mail or no longer need it."
    )

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(
                fields=["notify_at"], condition=models.Q(notify_at__isnull=False), name="budget_notice_due"
            )
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["scope", "period", "percent", "budget_nano"], name="budget_notice_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.percent} % of {self.scope} in {self.period}"


class PrepaidMark(models.Model):
    """Peak of the prepaid balance and credits since the last top-up, and the last threshold notified."""

    tenant = models.CharField(primary_key=True, max_length=63)
    peak_nano = models.BigIntegerField(help_text="Highest balance since the last top-up.")
    top_ups = models.BigIntegerField(
        default=0,
        db_default=0,
        help_text="Number of top-ups. 0 for rows from releases that did not count them.",
    )
    told = models.PositiveSmallIntegerField(
        default=0, help_text="Highest announced percentage used; 0 if none."
    )

    def __str__(self) -> str:
        return f"{self.tenant}: {self.told} % of {self.peak_nano}"
